//! A folder is swapped with a link to the outside all the while.

use super::*;
use crate::files::{edit, grep, list, read, relocate, tar_out};
use ringfence_proto::{Copy, Edit, EditRequest, GrepRequest, Move, PathQuery, TarQuery};
use rustix::fs::{CWD, RenameFlags};
use std::io::Read as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const ROUNDS: usize = 400;

#[test]
fn nothing_leaves_while_a_folder_is_swapped() {
    for resolver in BOTH {
        let world = World::new(resolver);
        world.file("folder/secret", "inside\n");
        world.file("folder/deep/secret", "inside\n");
        world.link("link", &world.outside);
        let (folder, link) = (world.inside.join("folder"), world.inside.join("link"));
        let stop = AtomicBool::new(false);
        let (mut inside, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE)
                        .unwrap();
                }
            });
            let history = Mutex::default();
            for round in 0..ROUNDS {
                match one_round(&world, &history, round) {
                    true => inside += 1,
                    false => refused += 1,
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        world.assert_outside_untouched();
        // The control: the swap was really seen from both sides.
        assert!(
            inside > 0 && refused > 0,
            "{resolver:?}: {inside} inside, {refused} refused"
        );
    }
}

/// Does one of each; whether the first read found the folder.
fn one_round(world: &World, history: &Mutex<crate::files::history::History>, round: usize) -> bool {
    let root = &world.root;
    let name = || WORKSPACE.to_owned();
    let path = root.path("folder/secret").unwrap();
    let found = match read::open_regular(root, "read", &path) {
        Ok(mut file) => {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_ne!(text, SECRET);
            true
        }
        Err(_) => false,
    };
    let _ = world.write("folder/secret", "inside\n");
    let _ = world.write("folder/new/file", "inside\n");
    let append = WriteQuery {
        append: true,
        ..WriteQuery::new("folder/secret")
    };
    let _ = world.write_as(&append, "inside\n");
    let edit = Edit::Write {
        text: "inside\n".to_owned(),
    };
    let request = EditRequest {
        root: name(),
        path: "folder/secret".into(),
        edit,
        mode: None,
    };
    let _ = edit::edit(history, root, &request);
    let ask: GrepRequest =
        serde_json::from_value(serde_json::json!({ "pattern": "outside" })).unwrap();
    assert!(grep::grep(root, &ask, &go()).is_ok_and(|r| r.files.is_empty()));
    let recursive = PathQuery {
        recursive: true,
        ..PathQuery::new(".")
    };
    let _ = list::list(root, &recursive, &go());
    let mut archive = Vec::new();
    let tar = TarQuery {
        root: name(),
        path: ".".to_owned(),
    };
    if let Ok(tree) = tar_out::open(root, &tar) {
        let _ = tar_out::pack(tree, &mut archive, &go());
        assert!(
            !archive
                .windows(SECRET.len())
                .any(|w| w == SECRET.as_bytes())
        );
    }
    let copy = Copy {
        root: name(),
        from: "folder".into(),
        to: format!("copy{round}"),
        overwrite: true,
    };
    let _ = relocate::copy(root, &copy, &go());
    let moved = Move {
        root: name(),
        from: "folder/new/file".into(),
        to: "folder/deep/moved".into(),
        overwrite: true,
    };
    let _ = relocate::rename(root, &moved, &go());
    for path in ["folder/deep", "folder/new", &format!("copy{round}")] {
        let _ = relocate::delete(
            root,
            &PathQuery {
                recursive: true,
                ..PathQuery::new(path)
            },
        );
    }
    found
}
