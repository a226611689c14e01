use super::*;
use ringfence_core::SessionId;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Mutex;
use std::time::Duration;

fn new(name: &str) -> NewKey {
    NewKey {
        name: name.to_owned(),
        scope: Scope::Use,
        expires: None,
        max_sessions: None,
        max_memory: None,
        rate: None,
    }
}

fn load(state: &Path) -> Keys {
    Keys::load(&path(state)).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// A store that looks at its file each time, and what it complained of.
fn store(state: &Path) -> (KeyStore, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let complain = {
        let said = said.clone();
        move |failure: &Failure| said.lock().unwrap().push(failure.message.clone())
    };
    let store = KeyStore::open_with(state, Duration::ZERO, Box::new(complain)).unwrap();
    (store, said)
}

#[test]
fn only_the_key_itself_opens() {
    let state = tempfile::tempdir().unwrap();
    let (one, _) = add(state.path(), new("one")).unwrap();
    let (two, _) = add(state.path(), new("two")).unwrap();
    assert_ne!(one, two);
    let keys = load(state.path());
    assert_eq!(keys.find(&one).unwrap().name, "one");
    assert_eq!(keys.find(&two).unwrap().name, "two");
    let hash = String::from(Hash::of(&one));
    let last = if one.ends_with('0') { "1" } else { "0" };
    for wrong in [
        "",
        "rf_",
        "one",
        &one[1..],
        &one[..one.len() - 1],
        &format!("{one} "),
        &format!("{}{last}", &one[..one.len() - 1]),
        &one.to_uppercase(),
        &one.replacen("rf_", "rfs_", 1),
        &hash,
        &format!("rf_{hash}"),
    ] {
        assert_eq!(keys.find(wrong), None, "{wrong}");
    }
}

#[test]
fn the_key_itself_is_kept_nowhere() {
    let state = tempfile::tempdir().unwrap();
    let (secret, key) = add(state.path(), new("one")).unwrap();
    assert_eq!(secret.len(), 67);
    let secret = secret.strip_prefix("rf_").unwrap();
    for entry in fs::read_dir(state.path()).unwrap() {
        let file = entry.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        assert!(!fs::read_to_string(&file).unwrap().contains(secret));
    }
    assert!(!format!("{key:?}").contains(secret));
}

#[test]
fn a_key_that_has_expired_opens_nothing() {
    let state = tempfile::tempdir().unwrap();
    let end = now() + 1000;
    let (secret, _) = add(
        state.path(),
        NewKey {
            expires: Some(end),
            ..new("one")
        },
    )
    .unwrap();
    let keys = load(state.path());
    assert!(keys.find(&secret).is_some());
    assert!(keys.find_at(&secret, end - 1).is_some());
    assert!(keys.find_at(&secret, end).is_none());
    // Nor does what others made with it.
    let name = &keys.iter().next().unwrap().name;
    assert!(keys.named_at(name, end - 1).is_some());
    assert!(keys.named_at(name, end).is_none());
    assert!(keys.named_at("another", end - 1).is_none());
    let expires = Some(now());
    let (late, key) = add(
        state.path(),
        NewKey {
            expires,
            ..new("late")
        },
    )
    .unwrap();
    assert!(key.is_expired());
    assert!(load(state.path()).find(&late).is_none());
    assert!(store(state.path()).0.find(&late).is_none());
}

#[test]
fn scopes_have_an_order() {
    assert!(Scope::Read < Scope::Use && Scope::Use < Scope::Admin);
}

#[test]
fn names_have_a_rule() {
    for good in ["a", "A.b_c-1", &"x".repeat(64)] {
        assert!(check_name(good).is_ok(), "{good}");
    }
    for bad in ["", "a b", "a/b", "ä", "a\n", &"x".repeat(65)] {
        assert!(check_name(bad).is_err(), "{bad}");
    }
}

#[test]
fn makers_at_the_same_time_lose_nothing() {
    let state = tempfile::tempdir().unwrap();
    let secrets: Vec<String> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..8)
            .map(|n| {
                let state = state.path();
                scope.spawn(move || {
                    let make = |m| add(state, new(&format!("{n}-{m}"))).unwrap().0;
                    (0..8).map(make).collect::<Vec<_>>()
                })
            })
            .collect();
        let made = makers.into_iter().flat_map(|maker| maker.join().unwrap());
        made.collect()
    });
    let keys = load(state.path());
    assert_eq!(keys.iter().count(), 64);
    assert!(secrets.iter().all(|secret| keys.find(secret).is_some()));
}

#[test]
fn a_name_is_there_once() {
    let state = tempfile::tempdir().unwrap();
    add(state.path(), new("one")).unwrap();
    let failure = add(state.path(), new("one")).unwrap_err();
    assert_eq!(failure.code, ringfence_core::Code::AlreadyExists);
    assert_eq!(load(state.path()).iter().count(), 1);
}

#[test]
fn a_running_server_follows_the_file() {
    let state = tempfile::tempdir().unwrap();
    let (store, said) = store(state.path());
    assert_eq!(store.keys().iter().count(), 0);
    let (one, _) = add(state.path(), new("one")).unwrap();
    assert_eq!(store.find(&one).unwrap().name, "one");
    let (two, _) = add(state.path(), new("two")).unwrap();
    assert!(store.find(&two).is_some());
    remove(state.path(), "one").unwrap();
    assert!(store.find(&one).is_none());
    assert!(store.find(&two).is_some());
    fs::remove_file(path(state.path())).unwrap();
    assert!(store.find(&two).is_none(), "no file, no keys");
    assert_eq!(*said.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn a_file_that_did_not_change_is_not_read_again() {
    let state = tempfile::tempdir().unwrap();
    add(state.path(), new("one")).unwrap();
    let (store, _) = store(state.path());
    assert!(Arc::ptr_eq(&store.keys(), &store.keys()));
    let slow = KeyStore::open(state.path(), |_| {}).unwrap();
    let before = slow.keys();
    assert!(Arc::ptr_eq(&before, &slow.keys()));
}

#[test]
fn a_spoilt_file_leaves_the_last_good_keys() {
    let state = tempfile::tempdir().unwrap();
    let (one, _) = add(state.path(), new("one")).unwrap();
    let (store, said) = store(state.path());
    let file = path(state.path());
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "{").unwrap();
    assert!(store.find(&one).is_some());
    assert!(store.find(&one).is_some());
    assert_eq!(said.lock().unwrap().len(), 1, "said once");
    assert!(
        KeyStore::open(state.path(), |_| {}).is_err(),
        "not at start"
    );
    assert!(add(state.path(), new("two")).is_err(), "nor is it replaced");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{");
    fs::write(&file, good).unwrap();
    let (two, _) = add(state.path(), new("two")).unwrap();
    assert!(store.find(&two).is_some(), "and it goes on");
}

/// What could not be read once is tried again, also when the file itself stays as it is: a server
/// that was out of descriptors must not miss that a key was removed.
#[test]
fn a_file_that_could_not_be_read_is_tried_again() {
    let state = tempfile::tempdir().unwrap();
    let (store, said) = store(state.path());
    let file = path(state.path());
    let (one, _) = add(state.path(), new("one")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(store.find(&one).is_none());
    assert!(store.find(&one).is_none());
    assert_eq!(said.lock().unwrap().len(), 1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(store.find(&one).is_some());
}

#[test]
fn what_a_file_of_keys_must_not_be() {
    let state = tempfile::tempdir().unwrap();
    add(state.path(), new("one")).unwrap();
    let file = path(state.path());
    let good = fs::read_to_string(&file).unwrap();
    let entry = good.trim().strip_prefix("{\n  \"keys\": [").unwrap();
    let entry = entry.strip_suffix("]\n}").unwrap().trim();
    let twice = entry.replacen("one", "two", 1);
    for (bad, why) in [
        (String::new(), "EOF"),
        ("[]".to_owned(), "invalid length"),
        (good.replacen("\"use\"", "\"all\"", 1), "unknown variant"),
        (good.replacen("\"sha256\": \"", "\"sha256\": \"x", 1), "hex"),
        (
            good.replacen("\"scope\"", "\"limit\": 1, \"scope\"", 1),
            "unknown field",
        ),
        (good.replacen("\"one\"", "\"a b\"", 1), "not a name"),
        (
            format!("{{\"keys\":[{entry},{entry}]}}"),
            "name `one` is there twice",
        ),
        (
            format!("{{\"keys\":[{entry},{twice}]}}"),
            "key of `two` is there twice",
        ),
    ] {
        fs::write(&file, &bad).unwrap();
        let failure = Keys::load(&file).unwrap_err();
        assert!(failure.message.contains(why), "{why}: {failure}");
    }
    fs::write(&file, &good).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
    let failure = Keys::load(&file).unwrap_err();
    assert!(failure.message.contains("may write"), "{failure}");
}

fn session(digit: &str) -> SessionId {
    SessionId::of_digits(&digit.repeat(SessionId::DIGITS)).unwrap()
}

#[test]
fn a_key_of_a_session_opens_that_one_only() {
    let state = tempfile::tempdir().unwrap();
    let keys = SessionKeys::open(state.path()).unwrap();
    let (one, two) = (keys.of(&session("1")), keys.of(&session("2")));
    assert!(one.starts_with("rfs_") && one.len() == 100, "{one}");
    assert_eq!(keys.session(&one), Some(session("1")));
    assert_eq!(keys.session(&two), Some(session("2")));
    for key in [
        // The code of one with the digits of the other.
        &format!("{}{}", &one[..36], &two[36..]),
        &one[4..],
        &one[..one.len() - 1],
        &format!("{one}0"),
        "rfs_",
        "",
        &format!("{}{}", &one[..36], "0".repeat(64)),
        &format!("{}é{}", &one[..35], &one[37..]),
        &one.to_uppercase(),
        &one.replacen("rfs_", "rf_", 1),
    ] {
        assert_eq!(keys.session(key), None, "{key}");
    }
    assert!(Keys::default().find(&one).is_none());
}

#[test]
fn servers_on_one_state_agree_on_keys_of_sessions() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().join("new/state");
    let start = std::sync::Barrier::new(8);
    let made: BTreeSet<String> = std::thread::scope(|scope| {
        let servers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    SessionKeys::open(&folder).unwrap().of(&session("5"))
                })
            })
            .collect();
        servers.into_iter().map(|s| s.join().unwrap()).collect()
    });
    assert_eq!(made.len(), 1);
    let files: Vec<_> = fs::read_dir(&folder).unwrap().collect();
    assert_eq!(files.len(), 1, "nothing is left over: {files:?}");
    assert_eq!(mode(&folder.join("session.secret")), 0o600);
    let again = SessionKeys::open(&folder).unwrap().of(&session("5"));
    assert_eq!(made.first(), Some(&again), "also after a restart");
    let other = tempfile::tempdir().unwrap();
    assert_ne!(
        SessionKeys::open(other.path()).unwrap().of(&session("5")),
        again
    );
}

#[test]
fn a_spoilt_secret_is_not_used() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("session.secret");
    for (bytes, mode, why) in [
        (&[1; 31][..], 0o600, "not 32 bytes"),
        (&[1; 33], 0o600, "not 32 bytes"),
        (&[], 0o600, "not 32 bytes"),
        (&[1; 32], 0o640, "others can too"),
    ] {
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let failure = SessionKeys::open(state.path()).err().unwrap();
        assert!(failure.message.contains(why), "{failure}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

/// A sweep of sandboxes takes what could be one.
#[test]
fn files_of_keys_are_no_sandboxes() {
    let state = tempfile::tempdir().unwrap();
    add(state.path(), new("one")).unwrap();
    SessionKeys::open(state.path()).unwrap();
    for entry in fs::read_dir(state.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(ringfence_core::SandboxId::try_from(name).is_err());
    }
}

/// The construction is fixed: a server of a later version must open what this one gave out.
#[test]
fn keys_of_sessions_stay_what_they_are() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("session.secret");
    fs::write(&file, [7; 32]).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // Python: hmac.new(bytes([7] * 32), b"ringfence session key\0sbx_333…", "sha256").hexdigest()
    assert_eq!(
        SessionKeys::open(state.path()).unwrap().of(&session("3")),
        "rfs_333333333333333333333333333333334dff241423cf6df94b31282ea3ac681da3fb950df67e284c0e5a1f1d679015b4"
    );
}

/// Root may make keys for a server that runs as somebody else.
#[test]
fn files_of_keys_belong_to_the_owner_of_the_folder() {
    if !crate::settings::is_root() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(state.path(), Some(4321), Some(4321)).unwrap();
    add(state.path(), new("one")).unwrap();
    SessionKeys::open(state.path()).unwrap();
    for entry in fs::read_dir(state.path()).unwrap() {
        let file = entry.unwrap().path();
        let owner = fs::metadata(&file).unwrap().uid();
        assert_eq!((owner, mode(&file)), (4321, 0o600), "{}", file.display());
    }
}
