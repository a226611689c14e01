//! Write, append, delete, move, copy, mkdir, stat, list.

use super::*;
use crate::files::{list, relocate};
use ringfence_proto::{Code, Copy, FileKind, Mkdir, Move, PathQuery};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn delete(world: &World, path: &str, recursive: bool) -> Result<(), Failure> {
    relocate::delete(
        &world.root,
        &PathQuery {
            recursive,
            ..PathQuery::new(path)
        },
    )
}

fn rename(world: &World, from: &str, to: &str, overwrite: bool) -> Result<Entry, Failure> {
    let root = WORKSPACE.to_owned();
    let ask = Move {
        root,
        from: from.to_owned(),
        to: to.to_owned(),
        overwrite,
    };
    relocate::rename(&world.root, &ask, &go())
}

fn copy(world: &World, from: &str, to: &str, overwrite: bool) -> Result<Entry, Failure> {
    let root = WORKSPACE.to_owned();
    let ask = Copy {
        root,
        from: from.to_owned(),
        to: to.to_owned(),
        overwrite,
    };
    relocate::copy(&world.root, &ask, &go())
}

#[test]
fn writes_are_whole() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let entry = world.write("a/b/file", "one").unwrap();
        assert_eq!(
            (entry.path.as_str(), entry.size, entry.mode),
            ("a/b/file", 3, 0o644)
        );
        assert_eq!(mode(&world.inside.join("a")), 0o755);

        let path = world.inside.join("a/b/file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        world.write("a/b/file", "two").unwrap();
        assert_eq!(
            (world.text("a/b/file").as_str(), mode(&path)),
            ("two", 0o750)
        );
        let query = WriteQuery {
            mode: Some(0o600),
            ..WriteQuery::new("a/b/file")
        };
        world.write_as(&query, "three").unwrap();
        assert_eq!(
            (world.text("a/b/file").as_str(), mode(&path)),
            ("three", 0o600)
        );

        // Begun and never finished: nothing has changed, nothing is left over.
        let mut writing = write::begin(&world.root, &query).unwrap();
        writing.write(b"half").unwrap();
        drop(writing);
        assert_eq!(world.text("a/b/file"), "three");
        assert_eq!(world.names(), ["a", "a/b", "a/b/file"]);

        let bad = WriteQuery {
            mode: Some(0o10000),
            ..WriteQuery::new("x")
        };
        assert_eq!(
            world.write_as(&bad, "").unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(world.write("a", "").unwrap_err().code, Code::InvalidInput);
        assert_eq!(world.write(".", "").unwrap_err().code, Code::InvalidInput);
        assert_eq!(
            world.write("a/b/file/x", "").unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(world.names(), ["a", "a/b", "a/b/file"]);
    }
}

#[test]
fn writes_go_through_links_that_stay() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("real/file", "old");
        world.link("a/link", "../real/file");
        world.link("dangling", "real/new");
        world.link("out", world.outside.join("secret"));
        world.link("new-out", world.outside.join("new"));
        world.write("a/link", "new").unwrap();
        world.write("dangling", "made").unwrap();
        assert!(world.inside.join("a/link").is_symlink());
        assert_eq!(
            (world.text("real/file"), world.text("real/new")),
            ("new".into(), "made".into())
        );
        for path in ["out", "new-out", "../outside/secret"] {
            let failure = world.write(path, "x").unwrap_err();
            assert_eq!(failure.code, Code::Forbidden, "{failure}");
            let append = WriteQuery {
                append: true,
                ..WriteQuery::new(path)
            };
            assert_eq!(
                world.write_as(&append, "x").unwrap_err().code,
                Code::Forbidden
            );
        }
        world.assert_outside_untouched();
    }
}

#[test]
fn appends_and_new_files() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let append = WriteQuery {
            append: true,
            ..WriteQuery::new("log/file")
        };
        world.write_as(&append, "one\n").unwrap();
        let before = fs::metadata(world.inside.join("log/file")).unwrap().ino();
        let entry = world.write_as(&append, "two\n").unwrap();
        assert_eq!(
            (entry.size, world.text("log/file").as_str()),
            (8, "one\ntwo\n")
        );
        assert_eq!(
            fs::metadata(world.inside.join("log/file")).unwrap().ino(),
            before
        );

        let new = WriteQuery {
            create_new: true,
            ..WriteQuery::new("log/file")
        };
        let failure = world.write_as(&new, "x").unwrap_err();
        assert_eq!(failure.code, Code::AlreadyExists);
        assert!(failure.message.contains("already exists"));
        // One that comes between the begin and the end is not replaced either.
        let new = WriteQuery {
            create_new: true,
            ..WriteQuery::new("late")
        };
        let writing = write::begin(&world.root, &new).unwrap();
        world.file("late", "first");
        assert_eq!(writing.finish().unwrap_err().code, Code::AlreadyExists);
        assert_eq!(world.text("late"), "first");
        assert_eq!(world.names(), ["late", "log", "log/file"]);
    }
}

#[test]
fn deletes_stay_inside() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/b/file", "");
        world.link("a/b/out", &world.outside);
        world.link("out", &world.outside);
        assert_eq!(delete(&world, "a", false).unwrap_err().code, Code::Conflict);
        for path in [".", "/workspace", "./.", "a/.."] {
            assert_eq!(
                delete(&world, path, true).unwrap_err().code,
                Code::InvalidInput
            );
        }
        assert_eq!(
            delete(&world, "out/secret", true).unwrap_err().code,
            Code::Forbidden
        );
        assert_eq!(
            delete(&world, "none", true).unwrap_err().code,
            Code::NotFound
        );
        delete(&world, "out", true).unwrap();
        delete(&world, "a", true).unwrap();
        assert!(world.names().is_empty());
        world.assert_outside_untouched();
    }
}

#[test]
fn deletes_very_deep_folders() {
    let world = World::new(Resolver::Walk);
    let mut at = rustix::fs::open(&world.inside, OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&at, "deep", Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, "deep", OFlags::PATH, Mode::empty()).unwrap();
    }
    delete(&world, "deep", true).unwrap();
    assert!(world.names().is_empty());
}

use rustix::fs::{Mode, OFlags};

#[test]
fn moves() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/file", "a");
        world.file("b/file", "b");
        assert_eq!(
            rename(&world, "a/file", "b/file", false).unwrap_err().code,
            Code::AlreadyExists
        );
        let entry = rename(&world, "a/file", "new/place/file", false).unwrap();
        assert_eq!(
            (entry.path.as_str(), entry.kind),
            ("new/place/file", FileKind::File)
        );
        rename(&world, "new/place/file", "b/file", true).unwrap();
        assert_eq!(world.text("b/file"), "a");
        // A folder over a folder that isn't empty.
        world.file("full/x", "x");
        rename(&world, "b", "full", true).unwrap();
        assert_eq!(
            world.names(),
            ["a", "full", "full/file", "new", "new/place"]
        );
        rename(&world, "full", "full", true).unwrap();
        assert_eq!(world.text("full/file"), "a");
        assert_eq!(
            rename(&world, "full", "full/in", false).unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(
            rename(&world, "none", "x", false).unwrap_err().code,
            Code::NotFound
        );
        assert_eq!(
            rename(&world, "full", "../x", false).unwrap_err().code,
            Code::Forbidden
        );
        assert_eq!(
            rename(&world, "../outside", "x", false).unwrap_err().code,
            Code::Forbidden
        );
        assert_eq!(
            rename(&world, "full/file", "full", true).unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(world.text("full/file"), "a");
        fs::hard_link(world.inside.join("full/file"), world.inside.join("twin")).unwrap();
        rename(&world, "twin", "full/file", true).unwrap();
        assert_eq!(
            world.names(),
            ["a", "full", "full/file", "new", "new/place"]
        );
        world.assert_outside_untouched();
    }
}

#[test]
fn copies() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let file = world.file("a/b/file", "text");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o751)).unwrap();
        world.link("a/out", &world.outside);
        copy(&world, "a", "c/d", false).unwrap();
        assert_eq!(world.text("c/d/b/file"), "text");
        assert_eq!(mode(&world.inside.join("c/d/b/file")), 0o751);
        assert_eq!(
            fs::read_link(world.inside.join("c/d/out")).unwrap(),
            world.outside
        );
        assert_eq!(
            copy(&world, "a", "c/d", false).unwrap_err().code,
            Code::AlreadyExists
        );
        world.file("a/new", "new");
        copy(&world, "a", "c/d", true).unwrap();
        assert_eq!(world.text("c/d/new"), "new");
        assert_eq!(
            copy(&world, "a", "a/b/c", false).unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(
            copy(&world, "a", "a", true).unwrap_err().code,
            Code::InvalidInput
        );
        copy(&world, "a/new", "c/file", false).unwrap();
        assert_eq!(world.text("c/file"), "new");
        assert_eq!(
            copy(&world, "a/new", "../x", false).unwrap_err().code,
            Code::Forbidden
        );
        assert_eq!(
            copy(&world, "a/out/secret", "x", false).unwrap_err().code,
            Code::Forbidden
        );
        rustix::fs::mkfifoat(rustix::fs::CWD, world.inside.join("a/fifo"), Mode::RUSR).unwrap();
        assert_eq!(
            copy(&world, "a", "e", false).unwrap_err().code,
            Code::InvalidInput
        );
        assert!(!world.names().contains(&"e".to_owned()));
        world.assert_outside_untouched();
    }
}

#[test]
fn folders_and_stat() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let make = |path: &str, mode| {
            relocate::mkdir(
                &world.root,
                &Mkdir {
                    root: WORKSPACE.to_owned(),
                    path: path.to_owned(),
                    mode,
                },
            )
        };
        assert_eq!(make("a/b/c", Some(0o2770)).unwrap().mode, 0o2770);
        assert_eq!(make("a/b/c", None).unwrap().kind, FileKind::Folder);
        assert_eq!(make(".", None).unwrap().path, ".");
        world.file("file", "12345");
        assert_eq!(make("file", None).unwrap_err().code, Code::AlreadyExists);
        assert_eq!(make("../x", None).unwrap_err().code, Code::Forbidden);
        assert_eq!(
            make("x", Some(0o17777)).unwrap_err().code,
            Code::InvalidInput
        );
        world.link("link", "/nowhere");
        let stat = |path: &str| list::stat(&world.root, &world.root.path(path)?);
        let link = stat("link").unwrap();
        assert_eq!(
            (link.kind, link.target.as_deref()),
            (FileKind::Symlink, Some("/nowhere"))
        );
        assert_eq!(
            (stat("file").unwrap().size, stat("a/..").unwrap().kind),
            (5, FileKind::Folder)
        );
        assert!(stat("file").unwrap().modified > 1.0e9);
        assert_eq!(stat("none").unwrap_err().code, Code::NotFound);
        assert_eq!(stat("..").unwrap_err().code, Code::Forbidden);
    }
}

#[test]
fn lists() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("a/b/c", "");
        world.file("z", "");
        world.link("a/out", &world.outside);
        let list = |path: &str, recursive, depth| {
            let query = PathQuery {
                recursive,
                depth,
                ..PathQuery::new(path)
            };
            list::list(&world.root, &query, &go())
                .map(|r| r.entries.into_iter().map(|e| e.path).collect::<Vec<_>>())
        };
        assert_eq!(list(".", false, None).unwrap(), ["a", "z"]);
        assert_eq!(list("a", true, None).unwrap(), ["a/b", "a/b/c", "a/out"]);
        assert_eq!(
            list(".", true, Some(2)).unwrap(),
            ["a", "a/b", "a/out", "z"]
        );
        assert_eq!(
            list("a/out", false, None).unwrap_err().code,
            Code::Forbidden
        );
        assert_eq!(list("z", false, None).unwrap_err().code, Code::InvalidInput);
        assert_eq!(
            list(".", true, Some(0)).unwrap_err().code,
            Code::InvalidInput
        );
        assert_eq!(
            list(".", false, Some(3)).unwrap_err().code,
            Code::InvalidInput
        );

        for n in 0..10_001 {
            fs::write(world.inside.join(format!("a/b/{n}")), "").unwrap();
        }
        let result = list::list(&world.root, &PathQuery::new("a/b"), &go()).unwrap();
        assert_eq!((result.entries.len(), result.truncated), (10_000, true));
        let cancel = go();
        drop(crate::files::CancelOnDrop(cancel.clone()));
        assert!(list::list(&world.root, &PathQuery::new("a/b"), &cancel).is_err());
    }
}
