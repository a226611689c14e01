//! `/run` and `/run/batch`: what every snippet gets, whatever its language.

use ringfence_http_tests::{Outcome, Server, bearer, key, until};
use serde_json::{Value, json};

async fn run(server: &Server, body: Value) -> Outcome<Value> {
    let (status, outcome) = server.post("/run", &body).await?;
    if status != 200 {
        return Err(format!("{status} {outcome}").into());
    }
    Ok(outcome)
}

fn sandboxes(server: &Server) -> Outcome<usize> {
    let entries = std::fs::read_dir(&server.state)?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("run-")).count())
}

async fn nothing_is_left(server: &Server) -> Outcome {
    until(async || Ok((sandboxes(server)? == 0).then_some(()))).await
}

#[tokio::test]
async fn the_result_is_the_contracts() -> Outcome {
    let server = Server::start(&[])?;
    let code = "import os, sys\nprint(os.getcwd())\nprint('no', file=sys.stderr)\nsys.exit(3)";
    let done = run(&server, json!({"language": "PY", "code": code})).await?;
    assert_eq!(done["text"], "exit_code: 3\nstdout:\n/work\nstderr:\nno");
    for (field, value) in [
        ("ok", json!(false)),
        ("language", json!("python")),
        ("exit_code", json!(3)),
        ("stdout", json!("/work\n")),
        ("stderr", json!("no\n")),
        ("script_path", json!("/tmp/code/main.py")),
        ("sandbox", json!(true)),
        ("sandbox_network", json!(false)),
        ("backend", json!("native")),
        ("stage", json!("run")),
        ("stdout_truncated", json!(false)),
    ] {
        assert_eq!(done[field], value, "{field}: {done}");
    }
    let languages = done["supported_languages"].as_array().ok_or("no list")?;
    assert!(languages.contains(&json!("typescript")), "{done}");
    assert!(
        done["peak_memory"]
            .as_u64()
            .is_some_and(|bytes| bytes > 1 << 20),
        "{done}"
    );
    nothing_is_left(&server).await
}

#[tokio::test]
async fn bad_requests_say_where_and_what_was_meant() -> Outcome {
    let server = Server::start(&[])?;
    let (status, said) = server
        .post("/run", &json!({"language": "pyhton", "code": "1"}))
        .await?;
    assert_eq!(status, 422, "{said}");
    assert!(
        said.to_string().contains("python, javascript, typescript"),
        "{said}"
    );
    assert_eq!(said["hint"], "did you mean `python`?");
    for bad in [
        json!({"language": "python"}),
        json!({"language": "python", "code": "1", "colour": "red"}),
        json!({"language": "python", "code": "1", "timeout_seconds": 0}),
        json!({"language": "python", "code": "1", "outputs": ["../x"]}),
        json!({"language": "python", "code": "1", "files": {"/etc/x": "1"}}),
        json!({"language": "python", "code": "1", "memory": "1k"}),
    ] {
        let (status, said) = server.post("/run", &bad).await?;
        assert_eq!(status, 422, "{bad}: {said}");
    }
    let twice = r#"{"language": "python", "code": "1", "files": {"a": "1", "a": "2"}}"#;
    let url = format!("{}/run", server.url);
    let answer = reqwest::Client::new().post(url).body(twice).send().await?;
    assert_eq!(answer.status(), 422);
    let said = answer.text().await?;
    assert!(said.contains("is there twice"), "{said}");
    for refused in [
        json!({"language": "python", "code": "1", "network": true}),
        json!({"language": "python", "code": "1", "workspace_root": "/etc"}),
    ] {
        let (status, said) = server.post("/run", &refused).await?;
        assert_eq!(status, 403, "{refused}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn a_workspace_is_read_only_unless_asked() -> Outcome {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("data.txt"), "from outside")?;
    let allowed = format!("{}:rw", folder.path().display());
    let server = Server::start(&["--allow-mount", &allowed])?;
    let code = "print(open('data.txt').read())\ntry:\n    open('made', 'w').write('x')\n    \
                print('wrote')\nexcept OSError: print('denied')";
    for (sandbox, expected) in [(true, "denied"), (false, "wrote")] {
        let body = json!({"language": "python", "code": code, "sandbox": sandbox,
                          "workspace_root": folder.path()});
        let done = run(&server, body).await?;
        assert_eq!(
            done["stdout"],
            format!("from outside\n{expected}\n"),
            "{done}"
        );
        assert_eq!(done["sandbox"], sandbox);
        assert_eq!(folder.path().join("made").exists(), !sandbox);
    }
    Ok(())
}

#[tokio::test]
async fn files_arguments_environment_and_outputs() -> Outcome {
    let server = Server::start(&[])?;
    let code = "import os, sys, helper\nprint(helper.double(open('n.txt').read()), sys.argv[1], os.environ['A'])\n\
                open('out.csv', 'w').write('1,2')\nopen('/tmp/b.bin', 'wb').write(bytes([255]))\n\
                open('big.csv', 'wb').truncate(9 << 20)";
    let body = json!({
        "language": "python", "code": code, "args": ["one"], "env": {"A": "two"},
        "files": {"helper.py": "def double(text): return text * 2", "n.txt": "7"},
        "outputs": ["*.csv", "/tmp/*.bin"],
    });
    let done = run(&server, body).await?;
    assert_eq!(done["stdout"], "77 one two\n", "{done}");
    assert_eq!(
        done["outputs"],
        json!([
            {"path": "big.csv", "size": 9 << 20},
            {"path": "out.csv", "size": 3, "content": "1,2"},
            {"path": "/tmp/b.bin", "size": 1, "content": {"base64": "/w=="}},
        ])
    );
    Ok(())
}

#[tokio::test]
async fn output_streams_as_it_comes_and_ends_with_the_result() -> Outcome {
    let server = Server::start(&[])?;
    let code = "import time\nprint('first', flush=True)\ntime.sleep(0.2)\nprint('second')";
    let body = json!({"language": "python", "code": code});
    let mut events = server.events("POST", "/run", Some(&body), None).await?;
    let mut heard = Vec::new();
    while let Some(event) = events.next().await? {
        if event.name == "done" {
            assert_eq!(event.data["stdout"], "first\nsecond\n");
            assert_eq!(event.data["ok"], true);
        }
        heard.push((event.name, event.data["text"].clone()));
    }
    let names: Vec<&str> = heard.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["stdout", "stdout", "done"]);
    assert_eq!(heard[0].1, "first\n");
    Ok(())
}

#[tokio::test]
async fn a_lost_client_takes_its_sandbox_along() -> Outcome {
    let server = Server::start(&[])?;
    let code = "print('on', flush=True)\nwhile True: pass";
    let body = json!({"language": "python", "code": code, "timeout_seconds": 600});
    let mut events = server.events("POST", "/run", Some(&body), None).await?;
    let first = events.next().await?.ok_or("no event")?;
    assert_eq!(first.data["text"], "on\n");
    assert_eq!(sandboxes(&server)?, 1);
    drop(events);
    nothing_is_left(&server).await?;
    // The same without a stream.
    let url = format!("{}/run", server.url);
    let asked = tokio::spawn(reqwest::Client::new().post(url).json(&body).send());
    until(async || Ok((sandboxes(&server)? == 1).then_some(()))).await?;
    asked.abort();
    nothing_is_left(&server).await
}

/// What runs is ended and removed, what waits is never begun, with a stream and without.
#[tokio::test]
async fn a_lost_client_takes_its_batch_along() -> Outcome {
    let server = Server::start(&[])?;
    let silent = json!({"language": "sh", "code": "sleep 600", "timeout_seconds": 600});
    let body = json!({"snippets": vec![silent; 6], "jobs": 2});
    let busy = async || until(async || Ok((sandboxes(&server)? == 2).then_some(()))).await;
    let url = format!("{}/run/batch", server.url);
    let events = server
        .events("POST", "/run/batch", Some(&body), None)
        .await?;
    busy().await?;
    drop(events);
    nothing_is_left(&server).await?;
    let asked = tokio::spawn(reqwest::Client::new().post(url).json(&body).send());
    busy().await?;
    asked.abort();
    nothing_is_left(&server).await?;
    // None of those that waited took their place, and the server has room for others.
    let done = run(&server, json!({"language": "sh", "code": "echo on"})).await?;
    assert_eq!(done["stdout"], "on\n", "{done}");
    nothing_is_left(&server).await
}

#[tokio::test]
async fn a_batch_judges_each_case_and_one_harms_no_other() -> Outcome {
    let server = Server::start(&[])?;
    let python = |code: &str| json!({"language": "python", "code": code, "timeout_seconds": 2, "memory": "64m"});
    let body = json!({
        "snippets": [
            python("print(int(input()) * 2)"),
            python("while True: pass"),
            python("x = []\nwhile True: x.append(bytearray(1 << 20))"),
            python("1 / 0"),
            {"language": "c", "code": "int main(void) { return }"},
            {"language": "klingon", "code": "1"},
            {"language": "typescript", "code": "let x: = 1"},
        ],
        "cases": [
            {"name": "a", "stdin": "21", "expected_stdout": "42"},
            {"name": "b", "stdin": "21", "expected_stdout": "42 \n\n"},
            {"name": "c", "stdin": "21", "expected_stdout": "42", "compare": "exact"},
            {"name": "d", "stdin": "21"},
        ],
    });
    let (status, answer) = server.post("/run/batch", &body).await?;
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().ok_or("no results")?;
    let verdicts = |index: u64| -> Vec<&str> {
        let of = results.iter().filter(|r| r["index"] == index);
        of.filter_map(|r| r["verdict"].as_str()).collect()
    };
    let expected = ["accepted", "accepted", "wrong_answer", "accepted"];
    assert_eq!(verdicts(0), expected, "{answer}");
    for (index, verdict) in [
        (1, "time_limit"),
        (2, "memory_limit"),
        (3, "runtime_error"),
        (4, "compile_error"),
        (5, "not_run"),
        (6, "compile_error"),
    ] {
        assert_eq!(verdicts(index), [verdict; 4], "{index}: {answer}");
    }
    assert_eq!(answer["verdicts"]["accepted"], 3);
    let bad =
        json!({"snippets": [python("1"), {"language": "c", "code": "", "timeout_seconds": -1}]});
    let (status, said) = server.post("/run/batch", &bad).await?;
    assert_eq!(
        (status, &said["detail"][0]["loc"][2]),
        (422, &json!("1")),
        "{said}"
    );
    nothing_is_left(&server).await
}

#[tokio::test]
async fn a_batch_streams_as_it_finishes_or_in_order() -> Outcome {
    let server = Server::start(&[])?;
    let snippets = json!([
        {"language": "python", "code": "import time; time.sleep(1.5); print('slow')"},
        {"language": "python", "code": "print('quick')"},
    ]);
    for (ordered, expected) in [
        (false, ["quick\n", "slow\n"]),
        (true, ["slow\n", "quick\n"]),
    ] {
        let body = json!({"snippets": snippets, "ordered": ordered, "jobs": 2});
        let mut events = server
            .events("POST", "/run/batch", Some(&body), None)
            .await?;
        let mut printed = Vec::new();
        while let Some(event) = events.next().await? {
            match event.name.as_str() {
                "result" => printed.push(event.data["outcome"]["stdout"].clone()),
                other => assert_eq!(
                    (other, &event.data["verdicts"]["accepted"]),
                    ("done", &json!(2))
                ),
            }
        }
        assert_eq!(printed, expected);
    }
    Ok(())
}

#[tokio::test]
async fn two_hundred_snippets_run_as_one_batch() -> Outcome {
    const COUNT: usize = 200;
    let server = Server::start(&[])?;
    // Each looks for what another may have left; some fail in their own ways.
    let code = |n: usize| match n {
        50 => "raise SystemExit(7)".to_owned(),
        100 => "import os; os.kill(os.getpid(), 9)".to_owned(),
        150 => "while True: pass".to_owned(),
        n => format!(
            "import os\nassert not os.path.exists('/tmp/mine')\n\
             open('/tmp/mine', 'w').close()\nprint({n} * {n})"
        ),
    };
    let runs: Vec<Value> = (0..COUNT)
        .map(|n| json!({"language": "python", "code": code(n), "timeout_seconds": if n == 150 { 2 } else { 60 }}))
        .collect();
    let body = json!({"snippets": runs, "ordered": true});
    let (status, answer) = server.post("/run/batch", &body).await?;
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().ok_or("no results")?;
    assert_eq!(results.len(), COUNT);
    for (n, result) in results.iter().enumerate() {
        let exit = match n {
            50 => 7,
            100 => 137,
            150 => 124,
            _ => 0,
        };
        let outcome = &result["outcome"];
        assert_eq!(
            (&result["index"], &outcome["exit_code"]),
            (&json!(n), &json!(exit)),
            "{result}"
        );
        if exit == 0 {
            assert_eq!(outcome["stdout"], format!("{}\n", n * n), "{result}");
        }
    }
    nothing_is_left(&server).await
}

#[tokio::test]
async fn typescript_modules_elements_and_places() -> Outcome {
    let server = Server::start(&[])?;
    let ts = |code: &str| json!({"language": "ts", "code": code});
    let mut several = ts(
        "import { twice } from './lib/helper'\nimport type { T } from './lib/helper'\n\
                          const t: T = await Promise.resolve(twice(4))\nconsole.log(t)",
    );
    several["files"] = json!({"lib/helper.ts": "export type T = number\nexport const twice = (n: number): T => n * 2"});
    assert_eq!(run(&server, several).await?["stdout"], "8\n");
    let element = |language: &str, typed: &str| {
        json!({"language": language, "code": format!(
            "const React = {{ createElement: (n{typed}, p, ...c) => n + c.join('') }}\n\
             const Old = () => <b>old</b>\nconsole.log(Old())"
        )})
    };
    for (language, typed) in [("ts", ": string"), ("js", "")] {
        let done = run(&server, element(language, typed)).await?;
        assert_eq!(done["stdout"], "bold\n", "{done}");
    }
    let unknown = run(&server, json!({"language": "js", "code": "\n\n  <b/>"})).await?;
    let stderr = unknown["stderr"].as_str().ok_or("no stderr")?;
    assert!(stderr.contains("/tmp/code/main.js:3"), "{stderr}");
    let thrown = ts(
        "type A = {\n  b: number\n}\nfunction f(a: A): void {\n  throw new Error('x' + a.b)\n}\nf({ b: 1 })",
    );
    let said = run(&server, thrown).await?;
    let stderr = said["stderr"].as_str().ok_or("no stderr")?;
    assert!(stderr.contains("at f (/tmp/code/main.ts:5:9)"), "{stderr}");
    assert!(stderr.contains("/tmp/code/main.ts:7:1"), "{stderr}");
    let wrong = run(&server, ts("let a = 1\nlet b: = 2")).await?;
    assert_eq!(wrong["stage"], "compile");
    assert_eq!(wrong["stderr"], "main.ts:2:8: error: Unexpected token");
    Ok(())
}

#[tokio::test]
async fn hostile_typescript_ends_only_its_translator() -> Outcome {
    let server = Server::start(&[])?;
    for code in [
        "[".repeat(1_000_000),
        "(".repeat(1_000_000),
        "a?".repeat(500_000),
    ] {
        let done = run(&server, json!({"language": "ts", "code": code})).await?;
        assert_eq!(
            (&done["ok"], &done["stage"]),
            (&json!(false), &json!("compile")),
            "{done}"
        );
    }
    let fine = run(
        &server,
        json!({"language": "ts", "code": "console.log(1 as number)"}),
    )
    .await?;
    assert_eq!(fine["stdout"], "1\n");
    Ok(())
}

/// Starts something that does not end before its request is dropped, and waits until so many of
/// its sandboxes are there.
async fn hold(server: &Server, path: &str, body: Value, count: usize) -> Outcome<Held> {
    let request = server
        .http
        .post(format!("{}{path}", server.url))
        .json(&body);
    let request = request.header("accept", "text/event-stream");
    // Batches do nothing before somebody reads.
    let held = Held(tokio::spawn(
        async move { request.send().await?.text().await },
    ));
    until(async || Ok((sandboxes(server)? == count).then_some(()))).await?;
    Ok(held)
}

struct Held(tokio::task::JoinHandle<reqwest::Result<String>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test]
async fn snippets_count_like_sessions_while_they_run() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let few = key(&state, "few", &["--max-sessions", "2"])?;
    let many = key(&state, "many", &[])?;
    let mut server = Server::start_on(&state, &["--max-sessions", "3"], &[])?;
    server.http = bearer(&few)?;
    let quick = json!({"language": "bash", "code": "echo on"});
    let endless = json!({"language": "bash", "code": "sleep 1000", "timeout_seconds": 1000});
    let batch = json!({"snippets": [endless, endless, endless, endless], "jobs": 4});
    let one = json!({"snippets": [quick], "jobs": 8});

    // Of one key: a session and a snippet, then nothing more.
    let id = server.session().await?;
    let held = hold(&server, "/run", endless.clone(), 1).await?;
    for (path, body) in [
        ("/sessions", &json!({})),
        ("/run", &quick),
        ("/run/batch", &one),
    ] {
        let (status, answer) = server.post(path, body).await?;
        assert_eq!(status, 429, "{path} {answer}");
    }
    let others = async |path: &str, body: &Value| -> Outcome<u16> {
        Ok(server.as_key(&many, "POST", path, Some(body)).await?.0)
    };
    assert_eq!(others("/run", &quick).await?, 200);
    drop(held);
    nothing_is_left(&server).await?;
    // A batch has what is left, and does all of its work with that.
    let all = json!({"snippets": [quick, quick, quick], "jobs": 8});
    let (status, done) = server.post("/run/batch", &all).await?;
    assert_eq!((status, &done["verdicts"]["accepted"]), (200, &json!(3)));
    let path = format!("/sessions/{id}");
    assert_eq!(server.ask("DELETE", &path, None).await?.0, 204);
    let held = hold(&server, "/run/batch", batch.clone(), 2).await?;
    // Of the server: another key has the third place, and nobody a fourth.
    let other = reqwest::Client::clone(&server.http);
    server.http = bearer(&many)?;
    let more = hold(&server, "/run/batch", batch, 3).await?;
    for (path, body) in [("/sessions", &json!({})), ("/run/batch", &one)] {
        assert_eq!(server.post(path, body).await?.0, 503, "{path}");
    }
    drop((held, more));
    server.http = other;
    nothing_is_left(&server).await?;
    until(async || Ok((server.post("/run", &quick).await?.0 == 200).then_some(()))).await
}

#[tokio::test]
async fn a_batch_holds_its_cases_once() -> Outcome {
    let server = Server::start(&[])?;
    let peak = || -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let text = line.and_then(|line| line.split_whitespace().next());
        Ok(text.ok_or("no peak")?.parse::<u64>()? << 10)
    };
    let before = peak()?;
    // None of them is a language, so nothing has to run.
    let snippet = json!({"language": "nonesuch", "code": "x"});
    let input = "x".repeat(1 << 20);
    let case = json!({"stdin": input});
    let batch = json!({"snippets": vec![snippet; 400], "cases": vec![case; 4]});
    let (status, done) = server.post("/run/batch", &batch).await?;
    assert_eq!((status, &done["verdicts"]["not_run"]), (200, &json!(1600)));
    // A copy for each snippet would be 1.6 GB.
    let more = peak()? - before;
    assert!(more < 400 << 20, "{more} bytes more");
    Ok(())
}
