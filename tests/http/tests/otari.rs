//! `POST exec` with code and bash, every line of its contract.

use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};

async fn timed(
    server: &Server,
    id: &str,
    tool: &str,
    input: Value,
    seconds: u32,
) -> Outcome<Value> {
    let body = json!({"tool": tool, "input": input, "timeout_seconds": seconds});
    let (status, answer) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
    assert_eq!(status, 200, "{answer}");
    Ok(answer["result_block"]["content"].clone())
}

fn stderr(content: &Value) -> &str {
    content["stderr"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_call_is_answered_with_its_block() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let route = format!("/sessions/{id}/exec");
    let body = json!({"tool": "code_execution", "input": {"code": "print(2 + 2)"}, "more": 1});
    let (status, answer) = server.post(&route, &body).await?;
    assert_eq!(status, 200);
    let made = answer["tool_use_id"].as_str().ok_or("no id")?;
    let digits = made.strip_prefix("srvtoolu_").ok_or("no prefix")?;
    assert!(
        digits.len() == 24 && digits.chars().all(|c| c.is_ascii_hexdigit()),
        "{made}"
    );
    assert!(answer["execution_time_ms"].is_u64());
    let block = &answer["result_block"];
    assert_eq!(block["type"], "code_execution_tool_result");
    assert_eq!(block["tool_use_id"], made);
    let content = json!({"type": "code_execution_result", "stdout": "4", "stderr": "",
        "return_code": 0, "content": []});
    assert_eq!(block["content"], content);
    let body = json!({"tool": "bash_code_execution", "input": {"command": "echo hi"},
        "tool_use_id": "srvtoolu_mine"});
    let (_, answer) = server.post(&route, &body).await?;
    assert_eq!(answer["tool_use_id"], "srvtoolu_mine");
    let block = &answer["result_block"];
    assert_eq!(block["tool_use_id"], "srvtoolu_mine");
    assert_eq!(block["type"], "bash_code_execution_tool_result");
    assert_eq!(block["content"]["type"], "bash_code_execution_result");
    assert_eq!(block["content"]["stdout"], "hi\n");
    Ok(())
}

#[tokio::test]
async fn bad_requests_say_where() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let route = format!("/sessions/{id}/exec");
    let long = "x".repeat(200_001);
    for (body, loc) in [
        (
            json!({"tool": "code_execution", "input": {}}),
            json!(["body", "input", "code"]),
        ),
        (
            json!({"tool": "code_execution", "input": {"code": ""}}),
            json!(["body", "input", "code"]),
        ),
        (
            json!({"tool": "code_execution", "input": {"code": 1}}),
            json!(["body", "input", "code"]),
        ),
        (
            json!({"tool": "code_execution", "input": {"code": long}}),
            json!(["body", "input", "code"]),
        ),
        (
            json!({"tool": "bash_code_execution", "input": {"command": ""}}),
            json!(["body", "input", "command"]),
        ),
        (
            json!({"tool": "nope", "input": {}}),
            json!(["body", "tool"]),
        ),
        (
            json!({"tool": "code_execution", "input": {"code": "1"}, "timeout_seconds": 121}),
            json!(["body", "timeout_seconds"]),
        ),
        (
            json!({"tool": "code_execution", "input": {"code": "1"}, "timeout_seconds": 0}),
            json!(["body", "timeout_seconds"]),
        ),
        (json!({"tool": "code_execution"}), json!(["body", "input"])),
        (
            json!({"tool": "code_execution", "input": "x"}),
            json!(["body", "input"]),
        ),
    ] {
        let (status, said) = server.post(&route, &body).await?;
        assert_eq!(status, 422, "{said}");
        let fault = &said["detail"][0];
        assert_eq!(fault["loc"], loc, "{said}");
        assert!(
            fault["msg"].is_string() && fault["type"].is_string(),
            "{said}"
        );
    }
    let body = json!({"tool": "code_execution", "input": {"code": "1"}});
    let (status, said) = server.post("/sessions/sbx_nope/exec", &body).await?;
    assert_eq!((status, said["detail"].is_string()), (404, true));
    let code = format!("x = '{}'", "é".repeat(199_990));
    assert_eq!(server.code(id, &code).await?["return_code"], 0);
    Ok(())
}

#[tokio::test]
async fn code_keeps_its_state_and_loses_one_newline() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let define = "import math\nclass C:\n    n = 7\nx = 5\ndef f(): return x * 2";
    assert_eq!(server.code(id, define).await?["stdout"], "");
    assert_eq!(
        server.code(id, "print(math.floor(1.5), C.n, f())").await?["stdout"],
        "1 7 10"
    );
    let both = "import sys\nprint('a\\n')\nprint('e\\n', file=sys.stderr)";
    let done = server.code(id, both).await?;
    assert_eq!(
        (&done["stdout"], &done["stderr"]),
        (&json!("a\n"), &json!("e\n"))
    );
    let here = server.code(id, "import os; print(os.getcwd())").await?;
    assert_eq!(here["stdout"], "/workspace");
    // What child processes and C libraries print is heard, in order.
    let child = "import os\nprint(1, flush=True)\nos.system('echo 2')\nprint(3)";
    assert_eq!(server.code(id, child).await?["stdout"], "1\n2\n3");
    Ok(())
}

#[tokio::test]
async fn values_and_figures_are_extra_keys() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let done = server.code(id, "print('out')\n6 * 7").await?;
    assert_eq!(
        (&done["stdout"], &done["value"]),
        (&json!("out"), &json!("42"))
    );
    assert_eq!(done["results"][0]["kind"], "value");
    assert_eq!(done["results"][0]["data"]["text/plain"], "42");
    let none = server.code(id, "x = 1").await?;
    assert!(
        none.get("value").is_none() && none.get("results").is_none(),
        "{none}"
    );
    let rich = "class P:\n    def _repr_png_(self): return b'\\x89PNG'\n    def __repr__(self): return 'P'\nP()";
    let done = server.code(id, rich).await?;
    assert_eq!((&done["stdout"], &done["value"]), (&json!(""), &json!("P")));
    assert_eq!(done["results"][0]["data"]["image/png"], "iVBORw==");
    Ok(())
}

#[tokio::test]
async fn exceptions_and_exits_are_results() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    server.code(id, "kept = 1").await?;
    let done = server.code(id, "print('before')\n1 / 0").await?;
    assert_eq!(
        (&done["stdout"], &done["return_code"]),
        (&json!("before"), &json!(1))
    );
    assert!(stderr(&done).contains("Traceback") && stderr(&done).ends_with("division by zero"));
    let done = server.code(id, "def (").await?;
    assert_eq!(done["return_code"], 1);
    assert!(stderr(&done).contains("SyntaxError"));
    assert_eq!(
        server.code(id, "import sys; sys.exit(3)").await?["return_code"],
        3
    );
    assert_eq!(server.code(id, "sys.exit()").await?["return_code"], 0);
    assert_eq!(server.code(id, "print(kept)").await?["stdout"], "1");
    Ok(())
}

#[tokio::test]
async fn bash_is_fresh_and_exact() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let done = server
        .bash(
            id,
            "cd /tmp; X=1; export X; printf 'no end'; echo err >&2; exit 4",
        )
        .await?;
    assert_eq!(
        (&done["stdout"], &done["stderr"], &done["return_code"]),
        (&json!("no end"), &json!("err\n"), &json!(4))
    );
    let done = server
        .bash(id, "pwd; echo \"[$X]\"; echo $0; echo; echo")
        .await?;
    assert_eq!(done["stdout"], "/workspace\n[]\n/bin/bash\n\n\n");
    assert_eq!(server.bash(id, "kill -9 $$").await?["return_code"], -9);
    assert_eq!(server.bash(id, "kill -TERM $$").await?["return_code"], -15);
    assert_eq!(server.bash(id, "nosuchcommand").await?["return_code"], 127);
    Ok(())
}

#[tokio::test]
async fn calls_of_one_session_run_one_after_another() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    server.code(id, "import time\nrunning = most = 0").await?;
    let code = "running += 1\nmost = max(most, running)\ntime.sleep(0.02)\nrunning -= 1";
    let calls = (0..8).map(|_| server.code(id, code));
    for done in futures_util::future::join_all(calls).await {
        assert_eq!(done?["return_code"], 0);
    }
    assert_eq!(server.code(id, "print(most)").await?["stdout"], "1");
    Ok(())
}

#[tokio::test]
async fn a_timeout_says_its_limit_and_what_is_left() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    server.code(id, "kept = 41").await?;
    let input =
        json!({"code": "print('so far', flush=True)\nopen('f', 'w').close()\nwhile True: pass"});
    let done = timed(&server, id, "code_execution", input, 1).await?;
    assert_eq!(
        (&done["stdout"], &done["return_code"]),
        (&json!("so far"), &json!(-1))
    );
    assert!(stderr(&done).contains("timed out after 1s"), "{done}");
    assert!(stderr(&done).contains("variables are kept"), "{done}");
    assert_eq!(done["content"][0]["filename"], "f");
    assert_eq!(server.code(id, "print(kept + 1)").await?["stdout"], "42");
    // What can't be interrupted is replaced.
    let stuck = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)";
    let done = timed(&server, id, "code_execution", json!({"code": stuck}), 1).await?;
    assert_eq!(done["return_code"], -1);
    assert!(stderr(&done).contains("timed out after 1s"), "{done}");
    assert!(stderr(&done).contains("variables are lost"), "{done}");
    assert_eq!(
        server.code(id, "print('kept' in dir())").await?["stdout"],
        "False"
    );
    assert_eq!(server.bash(id, "ls").await?["stdout"], "f\n");
    let input = json!({"command": "echo so far; sleep 60 & sleep 60"});
    let done = timed(&server, id, "bash_code_execution", input, 1).await?;
    assert_eq!(
        (&done["stdout"], &done["return_code"]),
        (&json!("so far\n"), &json!(-1))
    );
    assert!(stderr(&done).contains("timed out after 1s"), "{done}");
    let left = server
        .bash(id, "cat /proc/[0-9]*/comm | grep -c sleep")
        .await?;
    assert_eq!(left["stdout"], "0\n");
    Ok(())
}

#[tokio::test]
async fn a_repl_that_dies_says_why_and_comes_back() -> Outcome {
    let server = Server::start(&["--memory", "128m"])?;
    let id = &server.session().await?;
    for (code, says) in [
        ("import os; os._exit(5)", "exited unexpectedly"),
        ("import os; os.kill(os.getpid(), 11)", "exited unexpectedly"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    ] {
        let done = server
            .code(id, &format!("print('a', flush=True)\n{code}"))
            .await?;
        // Where memory is held by a limit of the process, Python itself says so.
        let held = says == "memory" && stderr(&done).contains("MemoryError");
        if !held {
            assert_eq!(
                (&done["stdout"], &done["return_code"]),
                (&json!("a"), &json!(-1)),
                "{done}"
            );
            assert!(stderr(&done).contains(says), "{code}: {done}");
        }
        assert_eq!(server.code(id, "x = None; print(1)").await?["stdout"], "1");
    }
    Ok(())
}

#[tokio::test]
async fn output_past_the_limit_is_cut_and_counted() -> Outcome {
    let server = Server::start(&["--output", "2048"])?;
    let id = &server.session().await?;
    let done = server
        .code(
            id,
            "print('x' * 5000)\nimport sys\nprint('y' * 2048, file=sys.stderr, end='')",
        )
        .await?;
    let expected = format!("{}\n[2953 bytes left out]", "x".repeat(2048));
    assert_eq!(done["stdout"], expected);
    assert_eq!(
        (&done["stderr"], &done["return_code"]),
        (&json!("y".repeat(2048)), &json!(0))
    );
    let done = server
        .bash(id, "head -c 3000 /dev/zero | tr '\\0' z; echo e >&2")
        .await?;
    assert_eq!(
        done["stdout"],
        format!("{}\n[952 bytes left out]", "z".repeat(2048))
    );
    assert_eq!(done["stderr"], "e\n");
    Ok(())
}

#[tokio::test]
async fn files_that_calls_make_are_named_and_can_be_had() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let make = "import os\nos.mkdir('d')\nfor n in ('b.txt', 'a.csv', '.hidden', 'd/in'): open(n, 'w').write('hi')";
    let done = server.code(id, make).await?;
    let files = done["content"].as_array().ok_or("no list")?;
    let names: Vec<_> = files.iter().map(|file| &file["filename"]).collect();
    assert_eq!(names, [&json!("a.csv"), &json!("b.txt")]);
    assert_eq!(files[0]["type"], "code_execution_output");
    assert_eq!(files[0]["size_bytes"], 2);
    // What was there and did not change is not named again; what changed is.
    let done = server.bash(id, "cat a.csv; echo more >> b.txt").await?;
    assert_eq!(done["content"].as_array().map(Vec::len), Some(1));
    let file = &done["content"][0];
    assert_eq!(
        (&file["type"], &file["filename"]),
        (&json!("bash_code_execution_output"), &json!("b.txt"))
    );
    let file_id = file["file_id"].as_str().ok_or("no id")?;
    assert!(file_id.len() < 1500);
    for base in ["", "/v1"] {
        let (status, about) = server.get(&format!("{base}/files/{file_id}")).await?;
        assert_eq!((status, &about["filename"]), (200, &json!("b.txt")));
        assert_eq!(
            (&about["type"], &about["size_bytes"]),
            (&json!("file"), &json!(7))
        );
        assert_eq!(about["scope"], json!({"type": "session", "id": id}));
        let url = format!("{}{base}/files/{file_id}/content", server.url);
        let answer = server.http.get(url).send().await?;
        assert_eq!(answer.headers()["content-type"], "text/plain");
        assert_eq!(answer.text().await?, "himore\n");
    }
    // A link of that name is not that file, wherever it leads.
    server.bash(id, "rm b.txt; ln -s a.csv b.txt").await?;
    for route in [
        format!("/files/{file_id}"),
        format!("/files/{file_id}/content"),
    ] {
        assert_eq!(server.get(&route).await?.0, 404);
    }
    for bad in [
        "x",
        "file_",
        "file_AAAA",
        "..%2f..",
        &format!("{file_id}A"),
        &"A".repeat(5000),
    ] {
        for method in ["GET", "DELETE"] {
            assert_eq!(
                server
                    .ask(method, &format!("/v1/files/{bad}"), None)
                    .await?
                    .0,
                404,
                "{bad:.30}"
            );
        }
    }
    // With the session the files go.
    server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    assert_eq!(server.get(&format!("/v1/files/{file_id}")).await?.0, 404);
    Ok(())
}
