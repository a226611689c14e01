use super::*;
use crate::files::beneath::{GuestPath, Links};
use crate::files::read;
use proptest::prelude::*;
use ringfence_proto::{Code, ReadQuery};
use rustix::fs::{Mode, OFlags};
use std::io::Read as _;

fn read(root: &Root, path: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let path = root.path(path)?;
    read::open_regular(root, "read", &path)?
        .read_to_string(&mut text)
        .unwrap();
    Ok(text)
}

#[test]
fn paths_inside_resolve() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/b/file", "text");
        world.link("relative", "a/b");
        world.link("a/up", "../a/b/file");
        world.link("absolute", world.inside.join("a/b"));
        world.link("named", "/workspace/a/b");
        for path in [
            "a/b/file",
            "./a//b/./file",
            "a/../a/b/file",
            "a/b/../../a/b/file",
            "/workspace/a/b/file",
            "/workspace//./a/b/file",
            "relative/file",
            "relative/../b/file",
            "a/up",
            "absolute/file",
            "named/file",
            world.inside.join("a/b/file").to_str().unwrap(),
        ] {
            assert_eq!(
                read(&world.root, path).as_deref(),
                Ok("text"),
                "{resolver:?} {path}"
            );
        }
    }
}

#[test]
fn paths_that_leave_are_refused() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/file", "text");
        world.link("out", &world.outside);
        world.link("up", "../outside");
        world.link("secret", world.outside.join("secret"));
        world.link("chain", "up");
        world.link("proc", "/proc/self/root");
        world.link("cwd", "/proc/self/cwd");
        let through_proc = format!("proc{}", world.outside.join("secret").display());
        for path in [
            "..",
            "../outside/secret",
            "a/../../outside/secret",
            "/etc/passwd",
            "/workspace/../etc/passwd",
            "/workspaces/x",
            "/proc/self/root/etc/passwd",
            "out/secret",
            "up/secret",
            "chain/secret",
            "secret",
            "proc/etc/passwd",
            "cwd/x",
            &through_proc,
        ] {
            let failure = read(&world.root, path).unwrap_err();
            assert_eq!(
                failure.code,
                Code::Forbidden,
                "{resolver:?} {path}: {failure}"
            );
            assert!(failure.message.contains("escapes workspace"), "{failure}");
        }
        // The control: the same file is there, and is read when it is named from outside.
        assert_eq!(
            fs::read_to_string(world.inside.join("secret")).unwrap(),
            SECRET
        );
    }
}

#[test]
fn the_root_of_the_sandbox_keeps_links_inside() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/file", "text");
        world.link("link", world.inside.join("a"));
        world.link("up", "../../../../../../../../../../../..");
        let root = Root::choose("/", Path::new(WORKSPACE), resolver).unwrap();
        let inside = world.inside.display();
        assert_eq!(
            read(&root, &format!("{inside}/link/file")).as_deref(),
            Ok("text")
        );
        assert_eq!(
            read(&root, &format!("{inside}/up{inside}/a/file")).as_deref(),
            Ok("text")
        );
        let dots = format!("../../../..{inside}/a/file");
        assert_eq!(read(&root, &dots).as_deref(), Ok("text"));
        assert_eq!(
            read(&root, &format!("/proc/self/root{inside}/a/file")).as_deref(),
            Ok("text")
        );
    }
}

#[test]
fn bad_paths_are_refused_in_words() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let long = "x/".repeat(2048);
        let name = "n".repeat(256);
        for path in ["", "a\0b", &long, &name] {
            let failure = read(&world.root, path).unwrap_err();
            assert_eq!(
                failure.code,
                Code::InvalidInput,
                "{resolver:?} {path:?}: {failure}"
            );
        }
        for root in ["", "workspace", "/a/../b", "/a\0"] {
            let failure = Root::choose(root, &world.inside, resolver).unwrap_err();
            assert_eq!(failure.code, Code::InvalidInput, "{root:?}: {failure}");
        }
        world.link("loop", "loop");
        assert_eq!(
            read(&world.root, "loop/x").unwrap_err().code,
            Code::InvalidInput
        );
        world.file("file", "");
        assert_eq!(
            read(&world.root, "file/x").unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(
            read(&world.root, "file/").unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(read(&world.root, "none").unwrap_err().code, Code::NotFound);
    }
}

#[test]
fn links_can_be_refused_on_the_way() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/file", "text");
        world.link("link", "a");
        let open = |path: &str| {
            let path: GuestPath = world.root.path(path).unwrap();
            world
                .root
                .open_links(&path, OFlags::RDONLY, Mode::empty(), Links::Refuse)
        };
        assert!(open("a/file").is_ok());
        assert_eq!(open("link/file").unwrap_err(), rustix::io::Errno::LOOP);
        assert_eq!(open("link").unwrap_err(), rustix::io::Errno::LOOP);
    }
}

#[test]
fn what_is_no_file_is_not_read() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, world.inside.join("fifo"), mode).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(world.inside.join("socket")).unwrap();
        for path in ["fifo", "socket", "."] {
            let failure = read::open(&world.root, &ReadQuery::new(path))
                .err()
                .unwrap();
            assert_eq!(failure.code, Code::InvalidInput, "{path}: {failure}");
        }
        let root = Root::choose("/", Path::new(WORKSPACE), resolver).unwrap();
        assert_eq!(
            read(&root, "/dev/null").unwrap_err().code,
            Code::InvalidInput
        );
    }
}

fn part() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => Just(".."),
        1 => Just("."),
        1 => Just(""),
        3 => Just("a"),
        3 => Just("b"),
        2 => Just("link0"),
        2 => Just("link1"),
        2 => Just("link2"),
        1 => Just("file"),
        1 => Just("outside"),
        1 => Just("workspace"),
        1 => Just("secret"),
    ]
}

fn target() -> impl Strategy<Value = String> {
    (any::<bool>(), prop::collection::vec(part(), 1..5)).prop_map(|(absolute, parts)| {
        format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// On random trees with random links, no path reads, writes or deletes anything outside.
    #[test]
    fn no_path_leaves(
        links in prop::collection::vec((prop_oneof![Just(""), Just("a/"), Just("a/b/")], 0..3_u8, target(), any::<bool>()), 0..6),
        paths in prop::collection::vec(target(), 1..8),
        absolute in any::<bool>(),
    ) {
        let mut seen = Vec::new();
        for resolver in BOTH {
            let world = World::new(resolver);
            fs::create_dir_all(world.inside.join("a/b")).unwrap();
            world.file("file", "inside");
            world.file("a/b/file", "inside");
            for (folder, number, target, real) in &links {
                let target = if *real {
                    format!("{}/{target}", world.outside.display())
                } else {
                    target.clone()
                };
                let path = world.inside.join(format!("{folder}link{number}"));
                let _ = std::os::unix::fs::symlink(target, path);
            }
            let mut results = Vec::new();
            for path in &paths {
                let path = if absolute { format!("/workspace/{path}") } else { path.clone() };
                let text = read(&world.root, &path);
                if let Ok(text) = &text {
                    prop_assert_eq!(text, "inside");
                }
                results.push(text.map_err(|f| f.code));
                let written = world.write(&path, "inside").map(|e| e.size).map_err(|f| f.code);
                results.push(written.map(|s| s.to_string()));
                let query = ringfence_proto::PathQuery { recursive: true, ..ringfence_proto::PathQuery::new(&path) };
                let deleted = crate::files::relocate::delete(&world.root, &query);
                results.push(deleted.map(|()| String::new()).map_err(|f| f.code));
                world.assert_outside_untouched();
            }
            seen.push(results);
        }
        // The kernel and the walk agree on every path.
        prop_assert_eq!(&seen[0], &seen[1]);
    }
}
