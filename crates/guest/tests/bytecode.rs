//! A kernel that an interpreter has compiled before.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use ringfence_proto::ExecResult;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use support::Guest;

fn compile(to: &Path) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
        .args(["compile", "/usr/bin/python3"])
        .arg(to)
        .output()
        .unwrap()
}

/// What a kernel of a guest with this file says of where the code is.
async fn place_of_an_error(kernel: &Path) -> String {
    let guest = Guest::start_with(&["--kernel", kernel.to_str().unwrap()]).await;
    let request = json!({"code": "x = 1\n1/0"});
    let path = "/kernels/main/run";
    let client = guest.connect().await;
    let put = json!({"python": "/usr/bin/python3"});
    client.call(http::Method::PUT, "/kernels/main", &put).await;
    let bytes = client.try_post(path, request).await.unwrap();
    let result: ExecResult = serde_json::from_slice(&bytes).unwrap();
    result.stderr.data.text().into_owned()
}

#[tokio::test]
async fn what_was_compiled_is_what_runs_and_only_where_it_fits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel");
    let made = compile(&file);
    assert!(made.status.success(), "{made:?}");
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 1, "nothing unfinished is left");
    let whole = std::fs::read(&file).unwrap();

    // One letter of it tells it from the source.
    let marked = {
        let mut bytes = whole.clone();
        let at = bytes.windows(9).position(|w| w == b"<cell %d>").unwrap();
        bytes[at + 1] = b'C';
        bytes
    };
    std::fs::write(&file, &marked).unwrap();
    let text = place_of_an_error(&file).await;
    assert!(text.contains("<Cell 1>"), "{text}");

    // Made by another Python, too long, empty, not there: the source is compiled.
    let mut other = marked.clone();
    other[0] ^= 0xff;
    for bytes in [
        other,
        [marked.as_slice(), &[0; 64 << 10]].concat(),
        Vec::new(),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        let text = place_of_an_error(&file).await;
        assert!(text.contains("<cell 1>"), "{text}");
    }
    std::fs::remove_file(&file).unwrap();
    let text = place_of_an_error(&file).await;
    assert!(text.contains("<cell 1>"), "{text}");
}

#[test]
fn what_is_no_interpreter_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for python in ["/bin/true", "/bin/false", "/no/such"] {
        let file = folder.path().join("kernel");
        let made = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
            .args(["compile", python])
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            !made.status.success() && !made.stderr.is_empty(),
            "{python}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
