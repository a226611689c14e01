//! The images of `images/`, built from Debian's packages and used.

use ringfence_docker_tests::{Outcome, docker, docker_ok, ringfence};
use ringfence_http_tests::{bearer, until};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images")
}

/// Builds an image as it is today; unchanged steps come from the engine's cache.
fn build(name: &str, context: &Path) -> Outcome<String> {
    let tag = format!("ringfence-test/{name}");
    let context = context.to_string_lossy();
    let base = "BASE=ringfence-test/debian";
    docker_ok(&["build", "--build-arg", base, "--tag", &tag, &context])?;
    Ok(tag)
}

#[test]
fn the_sandbox_image_draws_without_root_and_network() -> Outcome {
    let image = build("sandbox", &images().join("sandbox"))?;
    let code = r#"
import os
import numpy, pandas, scipy.stats, sklearn.linear_model, statsmodels.api, sympy, networkx, seaborn
import openpyxl, docx, PIL.Image, bs4, lxml.etree, requests, httpx, yaml, jinja2, sqlalchemy
import matplotlib.pyplot as plt
table = pandas.DataFrame({"x": numpy.arange(5), "y": numpy.arange(5) ** 2})
table.plot(x="x", y="y")
plt.savefig("plot.png")
table.to_excel("table.xlsx")
print(os.getuid(), os.getcwd(), PIL.Image.open("plot.png").format, len(pandas.read_excel("table.xlsx")))
"#;
    let flags = ["run", "--rm", "--network=none", "--cap-drop=ALL"];
    let said = docker_ok(&[&flags[..], &[&image, "python3", "-c", code]].concat())?;
    assert_eq!(said, "1000 /workspace PNG 5");

    let tools = "for t in git curl jq rg make unzip sqlite3; do command -v $t >/dev/null || echo no $t; done";
    let missing = docker_ok(&[&flags[..], &[&image, "bash", "-c", tools]].concat())?;
    assert_eq!(missing, "");
    Ok(())
}

#[test]
fn the_languages_image_runs_every_language() -> Outcome {
    let image = build("languages", &images().join("languages"))?;
    let script = r#"
set -e
python3 -c 'print("python", 6*7)'
node -e 'console.log("javascript", 6*7)'
ruby -e 'puts "ruby #{6*7}"'
php -r 'echo "php ", 6*7, "\n";'
perl -e 'print "perl ", 6*7, "\n"'
lua5.4 -e 'print("lua " .. 6*7)'
Rscript -e 'cat("r", 6*7, "\n")'
for shell in bash dash zsh; do $shell -c 'echo '$shell' $((6*7))'; done
cat >a.c <<'C'
#include <stdio.h>
int main(void) { printf("c %d\n", 6*7); }
C
gcc a.c -o c && ./c
cat >a.cc <<'C'
#include <iostream>
int main() { std::cout << "c++ " << 6*7 << "\n"; }
C
g++ a.cc -o cc && ./cc
echo 'fn main() { println!("rust {}", 6*7); }' >a.rs
rustc a.rs -o rs && ./rs
echo 'class A { public static void main(String[] a) { System.out.println("java " + 6*7); } }' >A.java
javac A.java && java -cp . A
printf 'package main\nfunc main() { println("go", 6*7) }\n' >a.go
go run a.go 2>&1
id -u
"#;
    let said = docker_ok(&[
        "run",
        "--rm",
        "--network=none",
        &image,
        "bash",
        "-c",
        script,
    ])?;
    let words: Vec<&str> = said.lines().map(str::trim_end).collect();
    let expected = [
        "python 42",
        "javascript 42",
        "ruby 42",
        "php 42",
        "perl 42",
        "lua 42",
        "r 42",
        "bash 42",
        "dash 42",
        "zsh 42",
        "c 42",
        "c++ 42",
        "rust 42",
        "java 42",
        "go 42",
        "1000",
    ];
    assert_eq!(words, expected);
    Ok(())
}

/// The server image with the program under test.
fn server() -> Outcome<String> {
    let context = tempfile::tempdir()?;
    for name in ["Dockerfile", "seccomp.json"] {
        fs::copy(
            images().join("server").join(name),
            context.path().join(name),
        )?;
    }
    fs::copy(ringfence(), context.path().join("ringfence"))?;
    build("server", context.path())
}

/// The flags of the README, under "In a container".
struct Flags {
    seccomp: String,
}

impl Flags {
    fn new() -> Self {
        let profile = images().join("server/seccomp.json");
        Self {
            seccomp: format!("seccomp={}", profile.display()),
        }
    }

    fn with_profile(&self) -> Vec<&str> {
        vec![
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--security-opt",
            &self.seccomp,
        ]
    }

    fn all(&self) -> Vec<&str> {
        let mut flags = self.with_profile();
        flags.push("--security-opt=systempaths=unconfined");
        flags
    }
}

fn run(flags: &[&str], command: &[&str]) -> Outcome<Output> {
    docker([&["run", "--rm"], flags, command].concat())
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_native_sandbox_runs_inside_a_container() -> Outcome {
    let image = server()?;
    let flags = Flags::new();
    let code = "import os; print(os.getuid(), sorted(os.listdir('/workspace')))";
    let done = run(&flags.all(), &[&image, "run", "-c", code])?;
    assert_eq!(said(&done), "1000 []\n");

    let doctor = run(&flags.all(), &[&image, "doctor"])?;
    assert!(doctor.status.success(), "{}", said(&doctor));
    assert!(
        said(&doctor).contains("The default sandbox is sound"),
        "{}",
        said(&doctor)
    );

    // What the profile gives back to the container stays with it.
    let probe = ["unshare", "--user", "--map-root-user", "echo", "made"];
    let entry = ["--entrypoint=/usr/bin/env", image.as_str()];
    let outside = run(&flags.all(), &[&entry[..], &probe].concat())?;
    assert_eq!(said(&outside), "made\n");
    let inside = run(
        &flags.all(),
        &[&[image.as_str(), "run", "--"], &probe[..]].concat(),
    )?;
    assert!(
        !inside.status.success() && !said(&inside).contains("made"),
        "{}",
        said(&inside)
    );
    Ok(())
}

#[test]
fn in_a_plain_container_the_doctor_says_what_is_missing() -> Outcome {
    let image = server()?;
    let flags = Flags::new();
    let [root, filter, mask] = [
        "root may not mount",
        "seccomp profile denies",
        "/proc are masked",
    ];

    let plain = run(&[], &[&image, "run", "-c", "print(1)"])?;
    assert!(!plain.status.success());
    let text = said(&plain);
    assert!(
        text.contains("cannot make namespaces") && text.contains("ringfence doctor"),
        "{text}"
    );

    for (given, reasons) in [
        (vec![], vec![filter, mask]),
        (flags.with_profile(), vec![mask]),
        (vec!["--security-opt=systempaths=unconfined"], vec![filter]),
        (vec!["--user=0"], vec![root, filter, mask]),
    ] {
        let doctor = run(&given, &[&image, "doctor"])?;
        let text = said(&doctor);
        assert!(!doctor.status.success(), "{given:?}: {text}");
        let named: Vec<&str> = [root, filter, mask]
            .into_iter()
            .filter(|r| text.contains(r))
            .collect();
        assert_eq!(named, reasons, "{given:?}: {text}");
    }
    Ok(())
}

/// Removes its container, also when the test fails.
struct Container(String);

impl Drop for Container {
    fn drop(&mut self) {
        let _ = docker(["rm", "--force", "--volumes", &self.0]);
    }
}

#[tokio::test]
async fn the_server_image_serves_sessions() -> Outcome {
    let image = server()?;
    let flags = Flags::new();
    let auth = ["--env=RINGFENCE_AUTH=off", "--publish=127.0.0.1::8080"];
    let started = [&["run", "--detach"], &flags.all()[..], &auth, &[&image]].concat();
    let container = Container(docker_ok(&started)?);
    let address = docker_ok(&["port", &container.0, "8080"])?;
    let url = format!("http://{address}/sessions");
    let http = bearer("none")?;
    let session: Value = until(async || {
        let Ok(answer) = http.post(&url).json(&json!({})).send().await else {
            return Ok(None);
        };
        Ok(Some(answer.error_for_status()?.json().await?))
    })
    .await?;
    let id = session["session_id"].as_str().ok_or("no session")?;
    let done: Value = http
        .post(format!("{url}/{id}/exec"))
        .json(&json!({"tool": "code_execution", "input": {"code": "print(6 * 7)"}}))
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?;
    let content = &done["result_block"]["content"];
    assert_eq!(content["stdout"], "42", "{done}");
    Ok(())
}
