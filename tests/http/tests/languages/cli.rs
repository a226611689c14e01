//! The same from the command line.

use ringfence_http_tests::{Outcome, ringfence};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(folder: &Path, args: &[&str], input: &str) -> Outcome<Output> {
    let mut child = Command::new(ringfence())
        .args(args)
        .env("RINGFENCE_STATE_DIR", folder.join("state"))
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .ok_or("no stdin")?
        .write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?)
}

fn printed(done: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&done.stdout), text(&done.stderr), done.status.code())
}

#[test]
fn code_of_a_language_has_input_arguments_and_a_status() -> Outcome {
    let folder = tempfile::tempdir()?;
    let code = "puts $stdin.gets.upcase; puts ARGV.inspect; exit 7";
    let args = ["run", "--language", "rb", "-c", code, "one", "two"];
    let done = run(folder.path(), &args, "words\n")?;
    let expected = "WORDS\n[\"one\", \"two\"]\n".to_owned();
    assert_eq!(printed(&done), (expected, String::new(), Some(7)));
    let left = std::fs::read_dir(folder.path().join("state"))?.count();
    assert_eq!(left, 0);
    Ok(())
}

#[test]
fn a_file_says_its_language_and_files_come_out() -> Outcome {
    let folder = tempfile::tempdir()?;
    let code = "import { writeFileSync } from 'node:fs'\nconst n: number = 4\nwriteFileSync('n.txt', `${n}`)";
    std::fs::write(folder.path().join("main.ts"), code)?;
    let args = ["run", "--outputs", "*.txt", "main.ts"];
    let done = run(folder.path(), &args, "")?;
    assert_eq!(printed(&done), (String::new(), String::new(), Some(0)));
    assert_eq!(std::fs::read_to_string(folder.path().join("n.txt"))?, "4");
    // What is there is not written over.
    let again = run(folder.path(), &args, "")?;
    assert!(!again.status.success());
    Ok(())
}

#[test]
fn what_does_not_compile_is_told_with_its_line() -> Outcome {
    let folder = tempfile::tempdir()?;
    let args = ["run", "-l", "c", "-c", "int main(void) {\n  return x;\n}"];
    let (stdout, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!((stdout.as_str(), status), ("", Some(1)));
    assert!(stderr.contains("main.c:2:10: error"), "{stderr}");
    Ok(())
}

#[test]
fn many_files_run_on_many_cases() -> Outcome {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
    write("good.py", "print(int(input()) * 2)")?;
    write("bad.rb", "puts gets.to_i * 3")?;
    std::fs::create_dir(folder.path().join("cases"))?;
    write("cases/one.in", "1")?;
    write("cases/one.out", "2\n")?;
    write("cases/nil.in", "0")?;
    write("cases/nil.out", "0\n")?;
    let args = [
        "run", "--jobs", "2", "--cases", "cases", "good.py", "bad.rb",
    ];
    let (stdout, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!(status, Some(1), "{stderr}");
    let mut verdicts: Vec<(&str, &str, &str)> = stdout
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[5], words[6], words[0])
        })
        .collect();
    verdicts.sort_unstable();
    assert_eq!(
        verdicts,
        [
            ("bad.rb", "nil", "accepted"),
            ("bad.rb", "one", "wrong_answer"),
            ("good.py", "nil", "accepted"),
            ("good.py", "one", "accepted"),
        ]
    );
    Ok(())
}

#[test]
fn cases_come_as_lines_and_results_in_order_and_as_lines() -> Outcome {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
    // The first is the slowest, and writes where it may with --scratch.
    write(
        "a.py",
        "import time\nn = int(input())\ntime.sleep(1 if n == 1 else 0)\nopen('x', 'w').write('x')\nprint(n * 2)",
    )?;
    write(
        "cases.jsonl",
        "{\"name\": \"one\", \"stdin\": \"1\", \"expected_stdout\": \"2\\n\"}\n\n\
         {\"stdin\": \"2\", \"expected_stdout\": \"4\"}\n\
         {\"stdin\": \"3\", \"expected_stdout\": \"6\", \"compare\": \"trimmed\"}\n",
    )?;
    let batch = [
        "run",
        "--cases",
        "cases.jsonl",
        "--compare",
        "exact",
        "--ordered",
    ];
    let args = [&batch[..], &["--jobs", "3", "--scratch", "--json", "a.py"]].concat();
    let (stdout, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!(status, Some(1), "{stderr}");
    let lines: Result<Vec<serde_json::Value>, _> =
        stdout.lines().map(serde_json::from_str).collect();
    let lines = lines?;
    let verdicts: Vec<_> = lines.iter().map(|line| &line["verdict"]).collect();
    assert_eq!(
        verdicts,
        ["accepted", "wrong_answer", "accepted"],
        "{stdout}"
    );
    assert_eq!(lines[0]["file"], "a.py");
    assert_eq!(lines[0]["name"], "one");
    assert!(lines[2]["outcome"]["peak_memory"].is_u64(), "{stdout}");
    // The code can be on the command line; all are accepted here.
    let args = [
        "run",
        "--cases",
        "cases.jsonl",
        "-c",
        "print(int(input()) * 2)",
    ];
    let (stdout, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert_eq!(
        (stdout.lines().count(), stderr.as_str()),
        (3, "3 of 3 accepted\n")
    );
    write("cases.jsonl", "{}\n{\"input\": \"1\"}")?;
    let (_, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!(status, Some(64), "{stderr}");
    assert!(stderr.contains("line 2: unknown field `input`"), "{stderr}");
    Ok(())
}

#[test]
fn languages_are_listed_and_an_unknown_one_is_told() -> Outcome {
    let folder = tempfile::tempdir()?;
    let listed = run(folder.path(), &["languages", "--json"], "")?;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
    let python = listed.as_array().and_then(|all| all.first());
    assert_eq!(python.ok_or("no list")?["name"], "python");
    let args = ["run", "--language", "pyton", "-c", "1"];
    let (_, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!(status, Some(64));
    assert!(stderr.contains("did you mean `python`?"), "{stderr}");
    Ok(())
}

#[test]
fn a_language_runs_in_an_image() -> Outcome {
    let folder = tempfile::tempdir()?;
    let docker = ["--backend", "docker", "--image", "ringfence-test/languages"];
    let code = "puts $stdin.gets.upcase; puts ARGV.inspect; exit 7";
    let args = [&["run"], &docker[..], &["-l", "ruby", "-c", code, "one"]].concat();
    let done = run(folder.path(), &args, "words\n")?;
    let expected = "WORDS\n[\"one\"]\n".to_owned();
    assert_eq!(printed(&done), (expected, String::new(), Some(7)));
    // What is compiled has a sandbox for that, too.
    let code = "package main\nimport \"fmt\"\nfunc main() { fmt.Println(6 * 7) }";
    let args = [&["run"], &docker[..], &["-l", "go", "-c", code]].concat();
    let (stdout, stderr, status) = printed(&run(folder.path(), &args, "")?);
    assert_eq!((stdout.as_str(), status), ("42\n", Some(0)), "{stderr}");
    Ok(())
}

/// Nothing breaks: the answer says what is missing, and `auto` needs no engine.
#[test]
fn an_engine_that_is_missing_is_an_answer() -> Outcome {
    let folder = tempfile::tempdir()?;
    let lost = |backend: &str| -> Outcome<Output> {
        let output = Command::new(ringfence())
            .args([
                "run",
                "--json",
                "--backend",
                backend,
                "-l",
                "py",
                "-c",
                "print(6 * 7)",
            ])
            .env("RINGFENCE_STATE_DIR", folder.path().join("state"))
            .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
            .stdin(Stdio::null())
            .output()?;
        Ok(output)
    };
    let done = lost("docker")?;
    assert!(!done.status.success());
    let answer: serde_json::Value = serde_json::from_slice(&done.stdout)?;
    assert_eq!(answer["ok"], false, "{answer}");
    let error = answer["error"].to_string();
    assert!(
        error.contains("docker is not installed or not on PATH"),
        "{answer}"
    );
    let done = lost("auto")?;
    let answer: serde_json::Value = serde_json::from_slice(&done.stdout)?;
    assert_eq!(answer["stdout"], "42\n", "{answer}");
    Ok(())
}

#[test]
fn the_list_says_which_images_the_engine_has() -> Outcome {
    let list = |host: Option<&str>| -> Outcome<Vec<serde_json::Value>> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(ringfence());
        command.args(["languages", "--json"]);
        command.env("RINGFENCE_STATE_DIR", folder.path());
        let output = command
            .envs(host.map(|host| ("DOCKER_HOST", host)))
            .output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let known = list(None)?;
    assert!(known.len() >= 16);
    for language in &known {
        assert!(language["image_here"].is_boolean(), "{language}");
    }
    for language in list(Some("unix:///nowhere/docker.sock"))? {
        assert_eq!(language.get("image_here"), None, "{language}");
    }
    Ok(())
}
