//! Which files a job changed.

use super::super::Before;
use ringfence_proto::FileKind;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The names of what `work` changes.
async fn changed(folder: &Path, work: impl FnOnce()) -> (Vec<String>, bool) {
    let before = Before::look(folder).await;
    work();
    let (changed, more) = before.changed().await;
    assert!(changed.iter().all(|entry| entry.kind == FileKind::File));
    (changed.into_iter().map(|entry| entry.path).collect(), more)
}

#[tokio::test]
async fn every_kind_of_change_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["same", "longer", "touched", "swapped", "moved", "gone", "a"] {
        fs::write(at(name), "text").unwrap();
    }
    let (names, more) = changed(folder.path(), || {
        fs::write(at("longer"), "text text").unwrap();
        // Same size, same time: only the change time and the inode tell.
        let time = fs::metadata(at("touched")).unwrap().modified().unwrap();
        let file = fs::File::create(at("touched")).unwrap();
        std::io::Write::write_all(&mut &file, b"TEXT").unwrap();
        file.set_modified(time).unwrap();
        fs::write(at("new"), "TEXT").unwrap();
        fs::rename(at("new"), at("swapped")).unwrap();
        fs::rename(at("moved"), at("b")).unwrap();
        fs::remove_file(at("gone")).unwrap();
        fs::write(at("made"), "").unwrap();
    })
    .await;
    assert_eq!(names, ["b", "longer", "made", "swapped", "touched"]);
    assert!(!more);
    assert!(changed(folder.path(), || {}).await.0.is_empty());
}

#[tokio::test]
async fn writing_again_at_once_is_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    for text in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        let (names, _) = changed(folder.path(), || fs::write(&file, text).unwrap()).await;
        assert_eq!(names, ["file"], "at {text}");
    }
}

#[tokio::test]
async fn what_is_no_plain_file_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (names, _) = changed(folder.path(), || {
        fs::write(at(".hidden"), "").unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/file"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("link")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, mode, 0).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        fs::write(folder.path().join(OsStr::from_bytes(b"\xff\xfe")), "").unwrap();
        fs::write(at("line\nend \u{202e}"), "").unwrap();
    })
    .await;
    assert_eq!(names, ["line\nend \u{202e}"]);
}

#[tokio::test]
async fn many_files_are_cut_and_a_large_folder_is_not_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let make = |from: usize, to: usize| {
        for n in from..to {
            fs::write(folder.path().join(format!("{n:05}")), "").unwrap();
        }
    };
    let (names, more) = changed(folder.path(), || make(0, 300)).await;
    assert_eq!((names.len(), more), (100, true));
    assert_eq!((names[0].as_str(), names[99].as_str()), ("00000", "00099"));
    make(300, 3000);
    // Nothing that was there before is taken for new, wherever the reading stops.
    let (names, more) = changed(folder.path(), || {
        for n in 0..3000 {
            fs::rename(
                folder.path().join(format!("{n:05}")),
                folder.path().join(format!(".{n:05}")),
            )
            .unwrap();
        }
    })
    .await;
    assert_eq!((names.len(), more), (0, true));
}

#[tokio::test]
async fn a_folder_that_is_taken_away_has_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    let (names, more) = changed(&inner, || ()).await;
    assert_eq!((names.len(), more), (0, false));
    let (names, _) = changed(&inner, || {
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "").unwrap();
    })
    .await;
    assert_eq!(names, ["file"]);
    let gone = changed(&inner, || fs::remove_dir_all(&inner).unwrap()).await;
    assert!(gone.0.is_empty());
}
