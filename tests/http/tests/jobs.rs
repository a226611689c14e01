//! Jobs: started, waited for, listed, fed, signalled, read and removed.

use ringfence_http_tests::events::bytes;
use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};

#[tokio::test]
async fn a_result_says_everything() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({
        "command": "cat; echo $A >&2; pwd; echo made > ../file; exit 3",
        "env": {"A": "from outside"}, "cwd": "sub", "stdin": "typed\n", "output_limit": 1000,
        "timeout_seconds": 20, "cpu_seconds": 10,
    });
    server.bash(&id, "mkdir sub").await?;
    let (status, done) = server.post(&path, &body).await?;
    assert_eq!(status, 200, "{done}");
    assert_eq!(done["stdout"]["text"], "typed\n/workspace/sub\n");
    assert_eq!(
        done["stderr"],
        json!({"text": "from outside\n", "total": 13, "truncated": false})
    );
    assert_eq!(
        (&done["return_code"], &done["exit"]),
        (&json!(3), &json!({"code": 3}))
    );
    assert_eq!(
        done["changed"][0]["path"]
            .as_str()
            .map(|p| p.ends_with("file")),
        Some(true)
    );
    assert!(done["job_id"].is_string() && done["duration_ms"].is_u64());

    let (_, done) = server
        .post(&path, &json!({"argv": ["printf", "%s", "a b"]}))
        .await?;
    assert_eq!(done["stdout"]["text"], "a b");
    let body = json!({"argv": ["cat"], "stdin": {"base64": "//4="}});
    let (_, done) = server.post(&path, &body).await?;
    assert_eq!(bytes(&done["stdout"])?, [0xff, 0xfe]);
    let (_, done) = server.post(&path, &json!({"code": "y = 5\ny * 2"})).await?;
    assert_eq!(done["results"][0]["data"]["text/plain"], "10");
    assert_eq!(server.code(&id, "print(y)").await?["stdout"], "5");
    let body = json!({"code": "while True: pass", "timeout_seconds": 0.3});
    let (_, done) = server.post(&path, &body).await?;
    assert_eq!(done["certificate"]["cause"], "wall_clock");
    assert_eq!(done["certificate"]["survived"]["variables"], true);
    assert_eq!(done["return_code"], -1);
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_named() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    for (body, place) in [
        (json!({}), "body"),
        (json!({"code": "1", "command": "true"}), "body"),
        (json!({"command": "true", "comand": 1}), "comand"),
        (json!({"command": ""}), "command"),
        (json!({"command": "a\u{0}b"}), "command"),
        (json!({"argv": []}), "argv"),
        (json!({"argv": [""]}), "argv"),
        (json!({"code": "1", "cwd": "/"}), "cwd"),
        (json!({"code": "1", "env": {"A": "1"}}), "env"),
        (json!({"code": "1", "kernel": "../x"}), "kernel"),
        (json!({"command": "true", "kernel": "main"}), "kernel"),
        (json!({"command": "true", "env": {"A=B": "1"}}), "env"),
        (json!({"command": "true", "id": "a/b"}), "id"),
        (
            json!({"command": "true", "timeout_seconds": 86401}),
            "timeout_seconds",
        ),
        (
            json!({"command": "true", "timeout_seconds": 0}),
            "timeout_seconds",
        ),
        (json!({"command": "true", "cpu_seconds": 0}), "cpu_seconds"),
        (
            json!({"command": "true", "output_limit": 1_u64 << 40}),
            "output_limit",
        ),
        (json!({"command": "true", "stdin": {"text": "x"}}), "stdin"),
        (
            json!({"command": "true", "stdin": "x", "pty": {"rows": 1, "cols": 1}}),
            "stdin",
        ),
        (
            json!({"command": "true", "pty": {"rows": 0, "cols": 1}}),
            "pty",
        ),
    ] {
        let (status, answer) = server.post(&path, &body).await?;
        assert_eq!(status, 422, "{body}: {answer}");
        let loc = answer["detail"][0]["loc"].as_array().ok_or("no place")?;
        assert_eq!(
            loc.last().and_then(Value::as_str),
            Some(place),
            "{body}: {answer}"
        );
    }
    for bad in ["none", "a%2Fb", "..%2F..%2Fkernels"] {
        let (status, _) = server.get(&format!("{path}/{bad}")).await?;
        assert_eq!(status, 404, "{bad}");
    }
    let (status, _) = server.get("/sessions/sbx_00/jobs").await?;
    assert_eq!(status, 404);
    Ok(())
}

#[tokio::test]
async fn the_same_request_again_joins_its_job() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    for (name, body) in [
        (
            "command",
            json!({"command": "echo run >> count; sleep 0.2; echo x"}),
        ),
        (
            "call",
            json!({"code": "import time\nopen('count', 'a').write('run\\n')\ntime.sleep(0.2)\nprint('x')"}),
        ),
    ] {
        let mut body = body;
        body["id"] = json!(name);
        let all = futures_util::future::join_all((0..5).map(|_| server.post(&path, &body))).await;
        for answer in all {
            let (status, done) = answer?;
            assert_eq!(
                (status, &done["stdout"]["text"]),
                (200, &json!("x\n")),
                "{done}"
            );
        }
        // And later, and as events.
        let (_, done) = server.post(&path, &body).await?;
        assert_eq!(done["stdout"]["text"], "x\n");
        server
            .events("POST", &path, Some(&body), None)
            .await?
            .until("done")
            .await?;
        body["detach"] = json!(true);
        assert_eq!(server.post(&path, &body).await?.0, 200);
        let (status, answer) = server
            .post(&path, &json!({"command": "true", "id": name}))
            .await?;
        assert_eq!((status, &answer["code"]), (409, &json!("already_exists")));
    }
    assert_eq!(server.bash(&id, "cat count").await?["stdout"], "run\nrun\n");
    Ok(())
}

#[tokio::test]
async fn a_detached_job_lives_and_is_removed() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    // One that leaves a process behind that has its own session.
    let command = "trap 'exit 9' TERM; setsid sleep 600 & echo $!; while :; do sleep 0.02; done";
    let body = json!({"command": command, "id": "bg", "detach": true, "timeout_seconds": 600});
    let (status, job) = server.post(&path, &body).await?;
    assert_eq!(
        (status, &job["job_id"], &job["state"]),
        (201, &json!("bg"), &json!("running"))
    );
    assert!(job["pid"].as_i64() > Some(1) && job["started_at"].as_f64() > Some(1e9));
    let (_, list) = server.get(&path).await?;
    assert_eq!(list["jobs"].as_array().map(Vec::len), Some(1), "{list}");
    let job = format!("{path}/bg");
    server
        .events("GET", &format!("{job}/events"), None, None)
        .await?
        .until("stdout")
        .await?;
    let (status, waited) = server
        .get(&format!("{job}/wait?timeout_seconds=0.05"))
        .await?;
    assert_eq!((status, &waited["state"]), (200, &json!("running")));
    assert_eq!(server.get(&format!("{job}/result")).await?.0, 409);
    assert_eq!(
        server
            .get(&format!("{job}/wait?timeout_seconds=301"))
            .await?
            .0,
        422
    );
    let signal = format!("{job}/signal");
    assert_eq!(
        server.post(&signal, &json!({"signal": "NOPE"})).await?.0,
        422
    );
    assert_eq!(
        server.post(&signal, &json!({"signal": "TERM"})).await?.0,
        204
    );
    let (_, waited) = server.get(&format!("{job}/wait")).await?;
    assert_eq!(
        (&waited["state"], &waited["end"]["return_code"]),
        (&json!("ended"), &json!(9))
    );
    let (status, done) = server.get(&format!("{job}/result")).await?;
    assert_eq!(status, 200);
    assert_eq!(
        server.post(&signal, &json!({"signal": "TERM"})).await?.0,
        409
    );
    // What it left runs on until it is removed.
    let left = done["stdout"]["text"].as_str().ok_or("no text")?.trim();
    let there = json!({"command": format!("kill -0 {left}")});
    assert_eq!(server.post(&path, &there).await?.1["return_code"], 0);
    assert_eq!(server.ask("DELETE", &job, None).await?.0, 204);
    assert_eq!(server.post(&path, &there).await?.1["return_code"], 1);
    assert_eq!(server.get(&job).await?.0, 404);
    assert_eq!(server.ask("DELETE", &job, None).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn a_call_that_waits_for_another_can_be_detached() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('first')";
    for (name, code) in [("one", wait), ("two", "print('second')")] {
        let body = json!({"code": code, "id": name, "detach": true});
        let (status, job) = server.post(&path, &body).await?;
        assert_eq!(
            (status, &job["state"], &job["kernel"]),
            (201, &json!("running"), &json!("main"))
        );
    }
    server.bash(&id, "touch go").await?;
    for (name, text) in [("one", "first\n"), ("two", "second\n")] {
        server.get(&format!("{path}/{name}/wait")).await?;
        let (_, done) = server.get(&format!("{path}/{name}/result")).await?;
        assert_eq!(done["stdout"]["text"], text);
    }
    Ok(())
}

#[tokio::test]
async fn input_is_streamed() -> Outcome {
    let server = Server::start(&["--max-upload", "1m"])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({"command": "cat", "id": "in", "detach": true, "stdin": {"stream": true}});
    assert_eq!(server.post(&path, &body).await?.0, 201);
    let send = async |query: &str, bytes: Vec<u8>| -> Outcome<u16> {
        let url = format!("{}{path}/in/stdin{query}", server.url);
        Ok(server
            .http
            .post(url)
            .body(bytes)
            .send()
            .await?
            .status()
            .as_u16())
    };
    assert_eq!(send("?end=false", b"one\n".to_vec()).await?, 204);
    let mut events = server
        .events("GET", &format!("{path}/in/events"), None, None)
        .await?;
    assert_eq!(
        events.until("stdout").await?.last().ok_or("none")?.data["text"],
        "one\n"
    );
    assert_eq!(send("?end=false", vec![b'x'; 2 << 20]).await?, 413);
    assert_eq!(send("", b"two\n".to_vec()).await?, 204);
    let (_, waited) = server.get(&format!("{path}/in/wait")).await?;
    assert_eq!(waited["end"]["return_code"], 0);
    let (_, done) = server.get(&format!("{path}/in/result")).await?;
    let text = done["stdout"]["text"].as_str().ok_or("no text")?;
    assert!(text.starts_with("one\n") && text.ends_with("two\n"));
    assert_eq!(send("", b"three".to_vec()).await?, 409);
    // One that takes none.
    server
        .post(
            &path,
            &json!({"command": "sleep 600", "id": "none", "detach": true}),
        )
        .await?;
    let url = format!("{}{path}/none/stdin", server.url);
    assert_eq!(server.http.post(url).body("x").send().await?.status(), 409);
    Ok(())
}

/// The bytes and the offset of one answer of `output`.
async fn output(server: &Server, path: &str) -> Outcome<(Vec<u8>, u64, u64)> {
    let answer = server
        .http
        .get(format!("{}{path}", server.url))
        .send()
        .await?;
    assert_eq!(answer.status(), 200);
    let number = |name: &str| -> Outcome<u64> {
        let value = answer.headers().get(name).ok_or("no header")?;
        Ok(value.to_str()?.parse()?)
    };
    let (from, total) = (
        number("ringfence-output-from")?,
        number("ringfence-output-total")?,
    );
    Ok((answer.bytes().await?.to_vec(), from, total))
}

#[tokio::test]
async fn output_past_the_limit_is_there_in_full() -> Outcome {
    let server = Server::start(&["--output", "100k"])?;
    // What the guest keeps is no file of the code, whose limit is far smaller here.
    let small = json!({"spec": {"limits": {"file_size": "64k"}}});
    let id = server.session_with(&small).await?;
    let lines = |n: u32| -> Vec<u8> {
        (0..n)
            .map(|i| format!("{i:09}\n"))
            .collect::<String>()
            .into_bytes()
    };
    let print =
        |n: u32| format!("import sys\nfor i in range({n}): sys.stdout.write('%09d\\n' % i)");
    // By the contract's route, whose answer says where the rest is.
    let call = json!({"tool": "code_execution", "input": {"code": print(300_000)}});
    let (_, answer) = server.post(&format!("/sessions/{id}/exec"), &call).await?;
    let text = answer["result_block"]["content"]["stdout"]
        .as_str()
        .ok_or("no text")?;
    assert!(text.ends_with("bytes left out]") && text.len() < 110_000);
    let job = answer["job_id"].as_str().ok_or("no job")?;
    let path = format!("/sessions/{id}/jobs/{job}");
    let whole = lines(300_000);
    let (all, from, total) = output(&server, &format!("{path}/output/stdout")).await?;
    assert_eq!((from, total), (0, 3_000_000));
    assert!(all == whole);
    let (rest, from, _) = output(&server, &format!("{path}/output/stdout?offset=2999990")).await?;
    assert_eq!((rest.as_slice(), from), (&whole[2_999_990..], 2_999_990));
    let (none, from, total) = output(&server, &format!("{path}/output/stderr?offset=7")).await?;
    assert_eq!((none.len(), from, total), (0, 0, 0));
    assert_eq!(server.get(&format!("{path}/output/other")).await?.0, 422);

    // More than is kept: the answer ends before the gap, and the next begins after it.
    let body = json!({"argv": ["python3", "-c", print(1_000_000)], "id": "big"});
    let (_, done) = server.post(&format!("/sessions/{id}/jobs"), &body).await?;
    assert_eq!(
        (&done["stdout"]["total"], &done["stdout"]["truncated"]),
        (&json!(10_000_000), &json!(true))
    );
    let path = format!("/sessions/{id}/jobs/big");
    let whole = lines(1_000_000);
    let (head, from, _) = output(&server, &format!("{path}/output/stdout")).await?;
    assert_eq!(from, 0);
    assert!(whole.starts_with(&head) && head.len() >= 100_000);
    let next = format!("{path}/output/stdout?offset={}", head.len());
    let (tail, from, total) = output(&server, &next).await?;
    assert_eq!((from + tail.len() as u64, total), (10_000_000, 10_000_000));
    assert!(from > head.len() as u64 && whole[from as usize..] == tail);
    assert_eq!(tail.len(), 4 << 20);
    // And as events, which say what is missing.
    let mut events = server
        .events("GET", &format!("{path}/events"), None, None)
        .await?;
    let all = events.until("done").await?;
    let gaps: Vec<_> = all.iter().filter(|got| got.name == "skipped").collect();
    assert_eq!(gaps.len(), 1);
    assert_eq!(
        gaps[0].data,
        json!({"stream": "stdout", "from": head.len(), "to": from})
    );
    Ok(())
}

#[tokio::test]
async fn whole_answers_leave_nothing_behind() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    for _ in 0..3 {
        server.code(&id, "print(1)").await?;
        server.bash(&id, "echo 1").await?;
    }
    let call = json!({"tool": "bash_code_execution", "input": {"command": "echo 1"}});
    let (_, answer) = server.post(&format!("/sessions/{id}/exec"), &call).await?;
    assert_eq!(answer["job_id"], Value::Null);
    let (_, list) = server.get(&format!("/sessions/{id}/jobs")).await?;
    assert_eq!(list["jobs"], json!([]));
    Ok(())
}

#[tokio::test]
async fn a_session_by_key_is_there_when_it_is_used() -> Outcome {
    let server = Server::start(&[])?;
    let by_key = "/sessions/key:talk%2F1%20x";
    for read in ["", "/jobs", "/kernels", "/jobs/one", "/jobs/one/events"] {
        let (status, answer) = server.get(&format!("{by_key}{read}")).await?;
        assert_eq!(status, 404, "{read}: {answer}");
    }
    // What needs something that is there makes nothing.
    let (status, _) = server
        .post(&format!("{by_key}/interrupt"), &json!({}))
        .await?;
    assert_eq!(status, 404);
    // A request that is wrong makes nothing either.
    let (status, _) = server.post(&format!("{by_key}/jobs"), &json!({})).await?;
    assert_eq!(status, 422);
    let (_, health) = server.get("/health").await?;
    assert_eq!(health["session_count"], 0);
    // Ten at once find the same one.
    let body = json!({"code": "n = globals().get('n', 0) + 1\nprint(n)"});
    let path = format!("{by_key}/jobs");
    let all = futures_util::future::join_all((0..10).map(|_| server.post(&path, &body))).await;
    let mut seen: Vec<u32> = Vec::new();
    for answer in all {
        let (status, done) = answer?;
        assert_eq!(status, 200, "{done}");
        seen.push(
            done["stdout"]["text"]
                .as_str()
                .ok_or("no text")?
                .trim()
                .parse()?,
        );
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=10).collect::<Vec<_>>());
    let (_, shown) = server.get(by_key).await?;
    assert_eq!(shown["key"], "talk/1 x");
    let call = json!({"tool": "code_execution", "input": {"code": "print(n)"}});
    let (_, answer) = server.post(&format!("/v1{by_key}/exec"), &call).await?;
    assert_eq!(answer["result_block"]["content"]["stdout"], "10");
    // It is the one that a creation with this key finds.
    let (status, made) = server
        .post("/sessions", &json!({"key": "talk/1 x"}))
        .await?;
    assert_eq!((status, &made["session_id"]), (200, &shown["session_id"]));
    assert_eq!(server.ask("DELETE", by_key, None).await?.0, 204);
    assert_eq!(server.get(by_key).await?.0, 404);
    let long = format!("/sessions/key:{}/jobs", "k".repeat(300));
    assert_eq!(server.post(&long, &body).await?.0, 422);
    Ok(())
}
