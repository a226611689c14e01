//! One command in a pod of its own.

use ringfence_kubernetes_tests::cluster::{
    GUEST, IMAGE, Namespace, Outcome, kubeconfig, ringfence,
};
use std::process::{Command, Output};

/// An image that has no guest.
const PLAIN: &str = "ringfence-test/python";

fn run(namespace: &Namespace, settings: &[(&str, &str)], args: &[&str]) -> Outcome<Output> {
    let state = tempfile::tempdir()?;
    let mut command = Command::new(ringfence());
    command
        .args(["run", "--backend", "kubernetes"])
        .args(args)
        .env("KUBECONFIG", kubeconfig()?)
        .env("RINGFENCE_STATE_DIR", state.path())
        .env("RINGFENCE_KUBERNETES_NAMESPACE", &namespace.0);
    for (name, value) in settings {
        command.env(format!("RINGFENCE_KUBERNETES_{name}"), value);
    }
    Ok(command.output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn code_runs_in_a_pod_and_nothing_is_left() -> Outcome {
    let namespace = Namespace::new("run")?;
    for (image, settings) in [
        (IMAGE, &[("REACH", "exec")][..]),
        (IMAGE, &[("REACH", "address")]),
        (PLAIN, &[("REACH", "exec"), ("GUEST_IMAGE", GUEST)]),
    ] {
        let args = ["--image", image, "-c", "print(6 * 7)"];
        let done = run(&namespace, settings, &args)?;
        assert_eq!(
            text(&done.stdout),
            "42\n",
            "{settings:?}: {}",
            text(&done.stderr)
        );
        assert!(done.status.success());
        namespace.await_nothing()?;
    }
    // An exit status, and input.
    let args = ["--image", IMAGE, "--", "sh", "-c", "cat; exit 7"];
    assert_eq!(run(&namespace, &[], &args)?.status.code(), Some(7));
    Ok(())
}

#[test]
fn what_a_cluster_can_not_do_is_said_and_nothing_is_left() -> Outcome {
    let namespace = Namespace::new("cannot")?;
    for (args, word) in [
        (&["--image", PLAIN, "-c", "1"][..], "kubernetes.guest_image"),
        (&["--image", "ringfence-test/nowhere", "-c", "1"], "image"),
        (&["--image", IMAGE, "--user", "app", "-c", "1"], "numbers"),
        (&["--image", IMAGE, "--pids", "20", "-c", "1"], "pids"),
        (
            &["--image", IMAGE, "--platform", "linux/amd64", "-c", "1"],
            "platform",
        ),
    ] {
        let done = run(&namespace, &[], args)?;
        let said = text(&done.stderr);
        assert!(
            !done.status.success() && said.contains(word),
            "{args:?}: {said}"
        );
    }
    namespace.await_nothing()?;
    Ok(())
}
