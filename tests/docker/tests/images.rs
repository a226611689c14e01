//! The images of `images/`, built from Debian's packages and used.

use ringfence_docker_tests::{Outcome, docker_ok};

#[test]
fn the_sandbox_image_runs_as_nobody_special() -> Outcome {
    let id = docker_ok(&["run", "--rm", "ringfence-test/sandbox", "id", "-u"])?;
    assert_eq!(id, "1000");
    Ok(())
}
