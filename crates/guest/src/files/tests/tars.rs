use super::*;
use crate::files::{tar_in, tar_out};
use proptest::prelude::*;
use ringfence_proto::{Code, TarQuery};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use tar::{EntryType, Header};

fn query(path: &str) -> TarQuery {
    TarQuery {
        root: WORKSPACE.to_owned(),
        path: path.to_owned(),
    }
}

fn unpack(world: &World, path: &str, archive: &[u8]) -> Result<(), Failure> {
    tar_in::unpack(&world.root, &query(path), archive)
}

fn pack(world: &World, path: &str) -> Vec<u8> {
    let mut archive = Vec::new();
    let tree = tar_out::open(&world.root, &query(path)).unwrap();
    tar_out::pack(tree, &mut archive, &go()).unwrap();
    archive
}

/// An archive with names that the tar crate would refuse to write.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn add(mut self, kind: EntryType, name: &[u8], link: &[u8], data: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        let old = header.as_old_mut();
        let most = name.len().min(100);
        old.name[..most].copy_from_slice(&name[..most]);
        let most = link.len().min(100);
        old.linkname[..most].copy_from_slice(&link[..most]);
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o6755);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, data: &str) -> Self {
        self.add(EntryType::Regular, name.as_bytes(), b"", data.as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

#[test]
fn a_folder_goes_out_and_comes_in() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let long = format!("from/{}/{}", "d".repeat(200), "f".repeat(200));
        world.file(&long, "long name");
        let tool = world.file("from/tool", "#!/bin/sh\n");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        world.file("from/closed/file", "x".repeat(100_000));
        let closed = world.inside.join("from/closed");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
        world.link("from/link", "closed/file");
        world.link("from/beside", "../shared");
        unpack(&world, "to/there", &pack(&world, "from")).unwrap();
        let strip = |prefix: &str| {
            let names = world.names();
            let names = names
                .iter()
                .filter_map(|n| n.strip_prefix(prefix).map(str::to_owned));
            names.collect::<Vec<_>>()
        };
        assert_eq!(strip("from/"), strip("to/there/"));
        assert_eq!(
            world.text(&long.replacen("from", "to/there", 1)),
            "long name"
        );
        let mode = |path: &str| {
            fs::metadata(world.inside.join(path))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!(
            (mode("to/there/tool"), mode("to/there/closed")),
            (0o755, 0o555)
        );
        assert!(world.inside.join("to/there/link").is_symlink());
        let failure = tar_out::open(&world.root, &query("from/tool"))
            .err()
            .unwrap();
        assert_eq!(failure.code, Code::InvalidInput);
        assert_eq!(
            tar_out::open(&world.root, &query("..")).err().unwrap().code,
            Code::Forbidden
        );
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn hostile_archives_are_refused() {
    for resolver in BOTH {
        let world = World::new(resolver);
        let secret = world.outside.join("secret");
        let secret = secret.to_str().unwrap();
        let outside = world.outside.to_str().unwrap();
        let expect = |archive: Raw, code: Code| {
            let failure = unpack(&world, ".", &archive.end()).unwrap_err();
            assert_eq!(failure.code, code, "{failure}");
            world.assert_outside_untouched();
        };
        expect(Raw::default().file("/etc/x", ""), Code::Forbidden);
        expect(
            Raw::default().file("../outside/secret", "x"),
            Code::Forbidden,
        );
        expect(
            Raw::default().file("a/../../outside/x", "x"),
            Code::Forbidden,
        );
        for (target, kind) in [
            (outside, EntryType::Symlink),
            ("../outside", EntryType::Symlink),
            ("a/../../outside", EntryType::Symlink),
            (secret, EntryType::Link),
            ("../outside/secret", EntryType::Link),
        ] {
            expect(
                Raw::default().add(kind, b"l", target.as_bytes(), b""),
                Code::Forbidden,
            );
        }
        // A link that was there before does not lead out either.
        world.link("out", outside);
        expect(Raw::default().file("out/secret", "x"), Code::Forbidden);
        expect(Raw::default().file("out/new", "x"), Code::Forbidden);
        expect(
            Raw::default().add(EntryType::Directory, b"out/new/", b"", b""),
            Code::Forbidden,
        );
        expect(
            Raw::default().add(EntryType::Link, b"hard", b"out/secret", b""),
            Code::Forbidden,
        );
        for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo] {
            expect(
                Raw::default().add(kind, b"dev", b"", b""),
                Code::InvalidInput,
            );
        }
        expect(
            Raw::default().add(EntryType::GNUSparse, b"s", b"", b""),
            Code::InvalidInput,
        );
        expect(
            Raw::default().add(
                EntryType::GNULongName,
                b"l",
                b"",
                &vec![b'a'; (1 << 20) + 1],
            ),
            Code::TooLarge,
        );
        expect(
            Raw::default()
                .add(
                    EntryType::XHeader,
                    b"p",
                    b"",
                    b"30 path=../outside/../outside\n",
                )
                .file("x", ""),
            Code::Forbidden,
        );
        // A file over a link replaces the link.
        unpack(&world, ".", &Raw::default().file("out", "file").end()).unwrap();
        assert_eq!(world.text("out"), "file");
        world.file("folder/x", "x");
        expect(Raw::default().file("folder", "x"), Code::Conflict);
        assert_eq!(world.text("folder/x"), "x");
        expect(Raw(b"not a tar archive".repeat(100)), Code::InvalidInput);
        world.assert_outside_untouched();
    }
}

#[test]
fn an_archive_that_breaks_off_leaves_no_half_file() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("b", "old");
        let archive = Raw::default()
            .file("a", "first")
            .file("b", &"x".repeat(5000))
            .end();
        for cut in [100, 512 + 3, 1024 + 512 + 4000] {
            let failure = unpack(&world, ".", &archive[..cut]).unwrap_err();
            assert_eq!(failure.code, Code::InvalidInput, "{failure}");
            assert_eq!(world.text("b"), "old");
        }
        assert_eq!(world.names(), ["a", "b"]);
        unpack(&world, ".", &archive).unwrap();
        assert_eq!(world.text("b").len(), 5000);
    }
}

#[test]
fn what_tar_writes_is_read() {
    let world = World::new(Resolver::Openat2);
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = Header::new_ustar();
    header.set_size(4);
    header.set_mode(0o4711);
    header.set_mtime(1_000_000_000);
    let pax = [("path", "pax/name".as_bytes()), ("size", b"4")];
    builder.append_pax_extensions(pax).unwrap();
    builder
        .append_data(&mut header, "short", &b"data"[..])
        .unwrap();
    header.set_entry_type(EntryType::Link);
    header.set_size(0);
    builder
        .append_link(&mut header, "hard", "pax/name")
        .unwrap();
    unpack(&world, ".", &builder.into_inner().unwrap()).unwrap();
    assert_eq!(world.names(), ["hard", "pax", "pax/name"]);
    let metadata = fs::metadata(world.inside.join("hard")).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o711);
    assert_eq!(
        std::os::unix::fs::MetadataExt::mtime(&metadata),
        1_000_000_000
    );
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&metadata), 2);
}

fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => Just("a"), 3 => Just("b"), 2 => Just(".."), 1 => Just("."), 1 => Just(""),
        1 => Just("outside"), 1 => Just("secret"), 1 => Just("workspace"),
    ];
    prop::collection::vec(part, 1..5).prop_map(|p| p.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_archive_writes_outside(
        entries in prop::collection::vec((0..4_u8, name(), name(), any::<bool>()), 1..10),
        at in prop_oneof![Just("."), Just("a"), Just("a/b")],
    ) {
        for resolver in BOTH {
            let world = World::new(resolver);
            for (kind, name, link, outside) in &entries {
                let link = match outside {
                    true => format!("{}/{link}", world.outside.display()),
                    false => link.clone(),
                };
                let (name, link) = (name.as_bytes(), link.as_bytes());
                // Each alone, so that one refusal does not keep the next from being tried.
                let archive = match kind {
                    0 => Raw::default().add(EntryType::Regular, name, b"", b"hostile"),
                    1 => Raw::default().add(EntryType::Directory, name, b"", b""),
                    2 => Raw::default().add(EntryType::Symlink, name, link, b""),
                    _ => Raw::default().add(EntryType::Link, name, link, b""),
                };
                let _ = unpack(&world, at, &archive.end());
                world.assert_outside_untouched();
            }
            let beside: Vec<_> = fs::read_dir(world.inside.parent().unwrap()).unwrap().collect();
            prop_assert_eq!(beside.len(), 2);
        }
    }
}

#[tokio::test]
async fn a_client_that_stalls_is_given_up() {
    let idle = std::time::Duration::from_millis(20);
    // It sends nothing.
    let (feed, mut pipe) = tar_in::pipe();
    let nothing = http_body_util::StreamBody::new(futures_util::stream::pending::<
        Result<http_body::Frame<bytes::Bytes>, std::io::Error>,
    >());
    feed.send_all(nothing, idle).await;
    let read = tokio::task::spawn_blocking(move || pipe.read(&mut [0; 9]));
    let error = read.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);

    // It takes nothing: the thread is free again, and what it got is not taken for whole.
    let world = World::new(BOTH[0]);
    for i in 0..9 {
        world.file(&format!("file{i}"), vec![0; 1 << 20]);
    }
    let tree = tar_out::open(&world.root, &query(".")).unwrap();
    let (held, free) = tokio::sync::oneshot::channel::<()>();
    let body = tar_out::body(tree, idle, held);
    assert!(free.await.is_err());
    assert!(http_body_util::BodyExt::collect(body).await.is_err());
}
