//! Tools of the caller's own: code in a session calls them, the server makes the request.

use ringfence_http_tests::callback::Callback;
use ringfence_http_tests::{Outcome, Server, until};
use serde_json::{Value, json};
use std::collections::HashSet;

const TOKEN: &str = "tok-8d3f0c5e71a94b26";

async fn register(server: &Server, id: &str, body: &Value) -> Outcome<Value> {
    let path = format!("/sessions/{id}/programmatic-tools/register");
    let (status, answer) = server.post(&path, body).await?;
    if status != 200 {
        return Err(format!("register: {status} {answer}").into());
    }
    Ok(answer)
}

/// What code prints; it must end well.
async fn prints(server: &Server, id: &str, code: &str) -> Outcome<String> {
    let done = server.code(id, code).await?;
    match done["stdout"].as_str() {
        Some(text) if done["return_code"] == 0 => Ok(text.to_owned()),
        _ => Err(format!("{code}: {done}").into()),
    }
}

/// The message of the `ToolError` that a call raises.
async fn raises(server: &Server, id: &str, call: &str) -> Outcome<String> {
    let code = format!(
        "import _platform_tools as t\ntry: print('returned', t.{call})\nexcept t.ToolError as e: print('ToolError', e)"
    );
    let said = prints(server, id, &code).await?;
    let message = said
        .strip_prefix("ToolError ")
        .ok_or_else(|| said.clone())?;
    Ok(message.to_owned())
}

#[tokio::test]
async fn a_call_is_one_post() -> Outcome {
    let server = Server::start(&[])?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    let mut body = callback.registration(TOKEN, &["echo", "other"]);
    body["something_new"] = json!(1);
    let answer = register(&server, &id, &body).await?;
    assert_eq!(answer["tool_count"], 2);
    let stub = answer["stub_path"].as_str().ok_or("no stub_path")?;
    assert!(stub.contains("lib"), "{stub}");
    let code = "from _platform_tools import echo\nr = echo(n=10**30, s='ü\\n\"', l=[1.5, None, {'a': True}])\nprint(r == {'n': 10**30, 's': 'ü\\n\"', 'l': [1.5, None, {'a': True}]}, echo.__doc__)";
    assert_eq!(prints(&server, &id, code).await?, "True does echo");
    let seen = callback.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(
        (seen[0].method.as_str(), seen[0].path.as_str()),
        ("POST", "/tools?v=1")
    );
    assert_eq!(seen[0].headers["authorization"], format!("Bearer {TOKEN}"));
    assert_eq!(seen[0].headers["content-type"], "application/json");
    assert_eq!(
        seen[0].headers["host"],
        format!("127.0.0.1:{}", callback.port)
    );
    let sent = seen[0].body.as_object().ok_or("no object")?;
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert_eq!(sent["name"], "echo");
    assert_eq!(sent["input"]["l"], json!([1.5, null, {"a": true}]));
    let call_id = sent["call_id"].as_str().ok_or("no id")?;
    assert!(
        call_id.starts_with("call_") && call_id.len() == 37,
        "{call_id}"
    );
    // A new process finds it too, and each call has an id of its own.
    let done = server
        .bash(
            &id,
            "python3 -c 'from _platform_tools import echo; print(echo(a=1), echo(a=1))'",
        )
        .await?;
    assert_eq!(done["stdout"], "{'a': 1} {'a': 1}\n", "{done}");
    let ids: HashSet<_> = callback
        .seen()
        .iter()
        .map(|s| s.body["call_id"].to_string())
        .collect();
    assert_eq!(ids.len(), 3);
    // The other path is the same.
    let path = format!("/v1/sessions/{id}/programmatic-tools/register");
    let (status, answer) = server
        .post(&path, &callback.registration(TOKEN, &[]))
        .await?;
    assert_eq!((status, &answer["tool_count"]), (200, &json!(0)));
    Ok(())
}

#[tokio::test]
async fn what_is_no_tool_is_refused() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/programmatic-tools/register");
    let good = json!({"callback_url": "http://127.0.0.1:9/", "token": "t", "tools": [{"name": "f", "doc": "d"}]});
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    let named = |names: &[&str]| {
        let tools: Vec<_> = names
            .iter()
            .map(|n| json!({"name": n, "doc": ""}))
            .collect();
        with("tools", json!(tools))
    };
    for (bad, word) in [
        (named(&["1a"]), "identifier"),
        (named(&[""]), "identifier"),
        (named(&["a-b"]), "identifier"),
        (named(&["a.b"]), "identifier"),
        (named(&["f\n"]), "identifier"),
        (named(&["class"]), "keyword"),
        (named(&["None"]), "keyword"),
        (named(&["a", "b", "a"]), "twice"),
        (with("callback_url", json!("")), "callback_url"),
        (with("callback_url", json!("  ")), "callback_url"),
        (with("callback_url", json!("nowhere")), "callback_url"),
        (
            with("callback_url", json!("ftp://a.example/")),
            "callback_url",
        ),
        (
            with("callback_url", json!("file:///etc/passwd")),
            "callback_url",
        ),
        (
            with("callback_url", json!("http://u:p@a.example/")),
            "callback_url",
        ),
        (with("token", json!("")), "token"),
        (with("token", json!("a\r\nX-Evil: 1")), "token"),
    ] {
        let (status, answer) = server.post(&path, &bad).await?;
        assert_eq!(status, 422, "{bad} {answer}");
        let detail = answer["detail"]
            .as_str()
            .ok_or_else(|| answer.to_string())?;
        assert!(detail.contains(word), "{bad}: {detail}");
    }
    for bad in [
        with("timeout_seconds", json!(0.5)),
        with("timeout_seconds", json!(3601)),
        with("timeout_seconds", json!("x")),
        with("tools", json!("f")),
        with("token", json!(null)),
        json!({}),
    ] {
        let (status, answer) = server.post(&path, &bad).await?;
        assert_eq!(status, 422, "{bad} {answer}");
        assert!(answer["detail"][0]["loc"].is_array(), "{bad} {answer}");
    }
    // Nothing of all that was registered; the same with nothing wrong is.
    let done = server.code(&id, "import _platform_tools").await?;
    assert_eq!(done["return_code"], 1, "{done}");
    for timeout in [1, 3600] {
        register(&server, &id, &with("timeout_seconds", json!(timeout))).await?;
    }
    let (status, _) = server
        .post("/sessions/sbx_none/programmatic-tools/register", &good)
        .await?;
    assert_eq!(status, 404);
    Ok(())
}

#[tokio::test]
async fn what_fails_raises() -> Outcome {
    let server = Server::start(&[])?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    let names = [
        "fail", "status", "garbage", "big", "large", "redirect", "cut", "echo",
    ];
    register(&server, &id, &callback.registration(TOKEN, &names)).await?;
    assert_eq!(
        raises(&server, &id, "fail()").await?,
        r#"{"why": "closed"}"#
    );
    for (call, word) in [
        ("status()", "500"),
        ("garbage()", "not a JSON object"),
        ("big()", "16777216"),
        ("redirect()", "redirects are not followed"),
        ("cut()", "broke off"),
    ] {
        let message = raises(&server, &id, call).await?;
        assert!(message.contains(word), "{call}: {message}");
        assert!(
            !message.contains(TOKEN) && !message.contains("127.0.0.1"),
            "{message}"
        );
    }
    assert!(callback.seen().iter().all(|seen| seen.path == "/tools?v=1"));
    let code = "import _platform_tools as t; print(len(t.large()), t.echo(a=1))";
    assert_eq!(
        prints(&server, &id, code).await?,
        format!("{} {{'a': 1}}", 15 << 20)
    );
    // A port that nobody listens at, and a name that is none.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await?
        .local_addr()?
        .port();
    for url in [
        format!("http://127.0.0.1:{free}/"),
        "http://nobody.invalid/".to_owned(),
    ] {
        let mut body = callback.registration(TOKEN, &["echo"]);
        body["callback_url"] = json!(url);
        register(&server, &id, &body).await?;
        let message = raises(&server, &id, "echo()").await?;
        assert!(message.contains("callback"), "{message}");
    }
    let metrics = server.http.get(format!("{}/metrics", server.url));
    let metrics = metrics.send().await?.text().await?;
    for (outcome, count) in [
        ("ok", 2),
        ("error", 1),
        ("status", 2),
        ("invalid", 1),
        ("too_large", 1),
        ("unreachable", 3),
    ] {
        let line = format!("ringfence_tool_calls_total{{outcome=\"{outcome}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_takes_too_long_raises() -> Outcome {
    let server = Server::start(&[])?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    let mut body = callback.registration(TOKEN, &["hang", "held"]);
    body["timeout_seconds"] = json!(1);
    register(&server, &id, &body).await?;
    let message = raises(&server, &id, "hang()").await?;
    assert!(message.contains("within 1 s"), "{message}");
    // The callback hears that nobody waits.
    callback.gone(1).await?;
    assert_eq!(callback.seen().len(), 1);
    // With more time a call outlives one that has only this.
    body["timeout_seconds"] = json!(3600);
    register(&server, &id, &body).await?;
    callback.release_at(usize::MAX);
    let other = server.session().await?;
    body["timeout_seconds"] = json!(1);
    register(&server, &other, &body).await?;
    let waits = async {
        callback.held(1).await?;
        let message = raises(&server, &other, "hang()").await?;
        callback.release_at(1);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(message)
    };
    let code = "import _platform_tools as t; print(t.held(x=2))";
    let (held, message) = tokio::join!(prints(&server, &id, code), waits);
    assert_eq!(held?, "{'x': 2}");
    assert!(message?.contains("within 1 s"));
    Ok(())
}

#[tokio::test]
async fn twenty_threads_call_at_once() -> Outcome {
    let server = Server::start(&[])?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    register(&server, &id, &callback.registration(TOKEN, &["held"])).await?;
    // None is answered before all are there.
    callback.release_at(20);
    let code = "from concurrent.futures import ThreadPoolExecutor as P\nfrom _platform_tools import held\nwith P(20) as p: r = list(p.map(lambda i: held(i=i)['i'], range(20)))\nprint(r == list(range(20)))";
    assert_eq!(prints(&server, &id, code).await?, "True");
    assert_eq!(callback.seen().len(), 20);
    Ok(())
}

#[tokio::test]
async fn the_token_stays_outside_and_no_network_is_needed() -> Outcome {
    let folder = tempfile::tempdir()?;
    let audit = folder.path().join("audit");
    let state = folder.path().join("state");
    let file = audit.to_str().ok_or("path")?;
    // A proxy of the environment is not asked.
    let proxy = [
        ("http_proxy", "http://127.0.0.1:9"),
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("ALL_PROXY", "http://127.0.0.1:9"),
    ];
    let server = Server::start_on(
        &state,
        &["--audit-file", file, "--audit-code", "--log-level", "trace"],
        &proxy,
    )?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    let answer = register(
        &server,
        &id,
        &callback.registration(TOKEN, &["echo", "held"]),
    )
    .await?;
    let connect = format!(
        "import socket; s = socket.socket(); s.settimeout(5); print(s.connect_ex(('127.0.0.1', {})) == 0)",
        callback.port
    );
    let outside = tokio::process::Command::new("python3")
        .args(["-c", &connect])
        .output()
        .await?;
    assert_eq!(outside.stdout, b"True\n");
    assert_eq!(prints(&server, &id, &connect).await?, "False");
    let code = "from _platform_tools import echo; print(echo(a='sent'))";
    assert_eq!(prints(&server, &id, code).await?, "{'a': 'sent'}");
    // Looked for while a call is under way. The word is put together inside, in memory, so that the
    // search does not find itself; a word that is there is found in both kinds of places.
    let stub = answer["stub_path"].as_str().ok_or("no stub")?;
    let search = r#"
import glob, os, sys
word = "".join(WORD).encode()
def has(path):
    try:
        with open(path, "rb") as file: return word in file.read()
    except OSError: return False
for top in (STUB, "/tmp", "/workspace", "/dev/shm", "/var/tmp", "/run", "/etc", "/home"):
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path) and has(path): print(path)
assert os.path.isfile(STUB + "/_platform_tools.py")
if any(map(has, glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"))): print("a process")
"#;
    let lib = stub.trim_end_matches("/_platform_tools.py");
    let look = |(start, end): (&str, &str)| {
        let search = search
            .replace("WORD", &format!("[{start:?}, {end:?}]"))
            .replace("STUB", &format!("{lib:?}"));
        let command = format!("C=canary-1234 python3 - <<'END'\n{search}\nEND");
        let (server, id) = (&server, id.clone());
        async move { server.bash(&id, &command).await }
    };
    callback.release_at(2);
    server.bash(&id, "echo canary-1234 > found").await?;
    let searched = async {
        callback.held(1).await?;
        let found = look(TOKEN.split_at(8)).await?;
        let control = look(("canary", "-1234")).await?;
        callback.release_at(1);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((found, control))
    };
    let (held, searched) = tokio::join!(
        prints(
            &server,
            &id,
            "from _platform_tools import held; print(held())"
        ),
        searched
    );
    let (found, control) = searched?;
    assert_eq!(held?, "{}");
    assert_eq!(
        (&found["stdout"], &found["stderr"]),
        (&json!(""), &json!(""))
    );
    assert_eq!(
        control["stdout"], "/workspace/found\na process\n",
        "{control}"
    );
    // It is in no log, also not of those who want to see everything.
    let written = std::fs::read_to_string(&audit)?;
    assert!(
        written.contains("register_tools") && !written.contains(TOKEN),
        "{written}"
    );
    let log = server.log();
    assert!(!log.is_empty() && !log.iter().any(|line| line.contains(TOKEN)));
    let (_, shown) = server.get(&format!("/sessions/{id}")).await?;
    assert!(!shown.to_string().contains(TOKEN), "{shown}");
    Ok(())
}

#[tokio::test]
async fn a_killed_server_is_followed_by_the_next() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &[], &[])?;
    let callback = Callback::start().await?;
    let id = first.session().await?;
    register(
        &first,
        &id,
        &callback.registration(TOKEN, &["echo", "held"]),
    )
    .await?;
    callback.release_at(usize::MAX);
    let body = json!({"tool": "code_execution", "input": {"code": "from _platform_tools import held, echo; x = held(a=1)"}, "timeout_seconds": 120});
    let asked = first
        .http
        .post(format!("{}/sessions/{id}/exec", first.url))
        .json(&body)
        .send();
    let cut = tokio::spawn(asked);
    callback.held(1).await?;
    first.kill()?;
    assert!(cut.await?.is_err());
    callback.gone(1).await?;
    let second = Server::start_on(&state, &[], &[])?;
    // The call that was under way is made again by whoever comes, under the same id.
    callback.held(1).await?;
    callback.release_at(1);
    assert_eq!(
        prints(&second, &id, "print(x, echo(b=2))").await?,
        "{'a': 1} {'b': 2}"
    );
    let ids: Vec<_> = callback
        .seen()
        .iter()
        .map(|seen| seen.body["call_id"].to_string())
        .collect();
    assert_eq!(ids.len(), 3);
    assert!(ids[0] == ids[1] && ids[1] != ids[2], "{ids:?}");
    Ok(())
}

#[tokio::test]
async fn a_session_that_is_started_again_has_its_tools() -> Outcome {
    let server = Server::start(&["--workspace-in", "disk"])?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    register(&server, &id, &callback.registration(TOKEN, &["echo"])).await?;
    let code = "from _platform_tools import echo; print(echo(a=1))";
    assert_eq!(prints(&server, &id, code).await?, "{'a': 1}");
    for _ in 0..2 {
        let (status, answer) = server
            .post(&format!("/sessions/{id}/suspend"), &json!({}))
            .await?;
        assert_eq!(status, 204, "{answer}");
        assert_eq!(prints(&server, &id, code).await?, "{'a': 1}");
    }
    Ok(())
}

#[tokio::test]
async fn registering_again_replaces() -> Outcome {
    let server = Server::start(&[])?;
    let (one, two) = (Callback::start().await?, Callback::start().await?);
    let id = server.session().await?;
    register(&server, &id, &one.registration("one", &["echo", "old"])).await?;
    prints(
        &server,
        &id,
        "import _platform_tools as t; t.echo(); t.old()",
    )
    .await?;
    register(&server, &id, &two.registration("two", &["echo", "new"])).await?;
    // Also for code that has imported it before.
    let code = "t.echo()\nfrom _platform_tools import echo, new\necho(); new()\ntry: t.old()\nexcept Exception as e: print(type(e).__name__, e)";
    let said = prints(&server, &id, code).await?;
    assert!(said.contains("no tool old"), "{said}");
    let done = server.code(&id, "from _platform_tools import old").await?;
    assert_eq!(done["return_code"], 1, "{done}");
    assert_eq!((one.seen().len(), two.seen().len()), (2, 3));
    assert!(
        two.seen()
            .iter()
            .all(|seen| seen.headers["authorization"] == "Bearer two")
    );
    Ok(())
}

#[tokio::test]
async fn two_servers_make_each_call_once() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &[], &[])?;
    let second = Server::start_on(&state, &[], &[])?;
    let (one, two) = (Callback::start().await?, Callback::start().await?);
    let id = first.session().await?;
    // Known to both before there are tools.
    assert_eq!(prints(&second, &id, "print(1)").await?, "1");
    register(&first, &id, &one.registration(TOKEN, &["echo"])).await?;
    let code = "from concurrent.futures import ThreadPoolExecutor as P\nfrom _platform_tools import echo\nwith P(10) as p: r = list(p.map(lambda i: echo(i=i)['i'], range(30)))\nprint(r == list(range(30)))";
    for server in [&first, &second] {
        assert_eq!(prints(server, &id, code).await?, "True");
    }
    assert_eq!(one.seen().len(), 60);
    // What one registers holds for the other at once.
    register(&second, &id, &two.registration(TOKEN, &["echo"])).await?;
    for server in [&second, &first] {
        assert_eq!(prints(server, &id, code).await?, "True");
    }
    assert_eq!((one.seen().len(), two.seen().len()), (60, 60));
    // And when one has gone, the other goes on.
    first.kill()?;
    assert_eq!(prints(&second, &id, code).await?, "True");
    assert_eq!((one.seen().len(), two.seen().len()), (60, 90));
    Ok(())
}

#[tokio::test]
async fn a_call_ends_with_whoever_waits_for_it() -> Outcome {
    let server = Server::start(&[])?;
    let callback = Callback::start().await?;
    let id = server.session().await?;
    register(
        &server,
        &id,
        &callback.registration(TOKEN, &["hang", "echo"]),
    )
    .await?;
    let call = "from _platform_tools import hang, echo\nhang()";
    // Interrupted.
    let interrupts = async {
        callback.held(1).await?;
        server
            .post(&format!("/sessions/{id}/interrupt"), &json!({}))
            .await
    };
    let (done, interrupted) = tokio::join!(server.code(&id, call), interrupts);
    assert_eq!(interrupted?.0, 204);
    assert_ne!(done?["return_code"], 0);
    callback.gone(1).await?;
    assert_eq!(prints(&server, &id, "print(echo(a=1))").await?, "{'a': 1}");
    // Deleted.
    let deletes = async {
        callback.held(1).await?;
        server.ask("DELETE", &format!("/sessions/{id}"), None).await
    };
    let (_, deleted) = tokio::join!(server.code(&id, call), deletes);
    assert_eq!(deleted?.0, 204);
    callback.gone(2).await?;
    let metrics = until(async || {
        let text = server
            .http
            .get(format!("{}/metrics", server.url))
            .send()
            .await?
            .text()
            .await?;
        Ok(text
            .contains("ringfence_tool_calls_total{outcome=\"cancelled\"} 2")
            .then_some(()))
    });
    metrics.await
}

#[tokio::test]
async fn callbacks_go_where_the_policy_allows() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut open = Server::start_on(&state, &["--keep"], &[])?;
    let callback = Callback::start().await?;
    let port = callback.port;
    let id = open.session().await?;
    let path = format!("/sessions/{id}/programmatic-tools/register");
    let to = |url: &str| json!({"callback_url": url, "token": TOKEN, "tools": [{"name": "echo", "doc": ""}]});
    for host in [
        "169.254.169.254",
        "169.254.1.1",
        "2852039166",
        "0xa9fea9fe",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[fd00:ec2::254]",
        "0.0.0.0",
        "[::]",
        "224.0.0.1",
        "[ff02::1]",
        "255.255.255.255",
        "100.100.100.200",
    ] {
        let (status, answer) = open
            .post(&path, &to(&format!("http://{host}:{port}/")))
            .await?;
        assert_eq!(status, 403, "{host} {answer}");
        assert!(
            answer["detail"].is_string() && answer["hint"].is_string(),
            "{answer}"
        );
    }
    let code = "from _platform_tools import echo; print(echo(a=1))";
    for host in ["127.0.0.1", "localhost", "2130706433"] {
        register(&open, &id, &to(&format!("http://{host}:{port}/open"))).await?;
        assert_eq!(prints(&open, &id, code).await?, "{'a': 1}", "{host}");
    }
    open.stop()?;
    // With a list, only what it names; what was registered before is looked at again.
    let rule = format!("http://127.0.0.1:{port}/hooks");
    let mut strict = Server::start_on(
        &state,
        &[
            "--keep",
            "--allow-callback",
            &rule,
            "--allow-callback",
            "127.9.0.0/16",
        ],
        &[],
    )?;
    let before = callback.seen().len();
    let message = raises(&strict, &id, "echo()").await?;
    assert!(message.contains("not allowed"), "{message}");
    assert_eq!(callback.seen().len(), before);
    for url in [
        format!("http://127.0.0.1:{port}/other"),
        format!("http://127.0.0.1:{port}/hooks-of-others"),
        format!("http://127.0.0.1:{port}/hooks/../other"),
        format!("http://localhost:{port}/hooks"),
        "http://127.0.0.1:9/hooks".to_owned(),
    ] {
        let (status, answer) = strict.post(&path, &to(&url)).await?;
        assert_eq!(status, 403, "{url} {answer}");
    }
    register(&strict, &id, &to("http://127.9.1.2:9/anything")).await?;
    register(
        &strict,
        &id,
        &to(&format!("http://127.0.0.1:{port}/hooks/a")),
    )
    .await?;
    assert_eq!(prints(&strict, &id, code).await?, "{'a': 1}");
    strict.stop()?;
    // The last one takes the sandboxes with it.
    let _last = Server::start_on(&state, &[], &[])?;
    Ok(())
}

/// A place behind TLS, with a certificate for this name of an authority of its own.
async fn secure(folder: &std::path::Path, name: &str) -> Outcome<(Callback, std::path::PathBuf)> {
    use tokio_rustls::rustls;
    let key = rcgen::KeyPair::generate()?;
    let mut authority = rcgen::CertificateParams::new(Vec::new())?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = authority.self_signed(&key)?;
    let file = folder.join(format!("{name}.pem"));
    std::fs::write(&file, root.pem())?;
    let issuer = rcgen::Issuer::new(authority, key);
    let own = rcgen::KeyPair::generate()?;
    let leaf = rcgen::CertificateParams::new(vec![name.to_owned()])?.signed_by(&own, &issuer)?;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(own.serialize_der())?,
        )?;
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let callback = Callback::start_with(move |stream| acceptor.accept(stream)).await?;
    Ok((callback, file))
}

#[tokio::test]
async fn https_is_checked() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (good, authority) = secure(folder.path(), "localhost").await?;
    let (stranger, _) = secure(folder.path(), "127.0.0.1").await?;
    let state = folder.path().join("state");
    let file = authority.to_str().ok_or("path")?;
    let server = Server::start_on(&state, &[], &[("SSL_CERT_FILE", file)])?;
    let id = server.session().await?;
    let to = |url: String| json!({"callback_url": url, "token": TOKEN, "tools": [{"name": "echo", "doc": ""}]});
    register(
        &server,
        &id,
        &to(format!("https://localhost:{}/", good.port)),
    )
    .await?;
    let code = "from _platform_tools import echo; print(echo(a=1))";
    assert_eq!(prints(&server, &id, code).await?, "{'a': 1}");
    assert_eq!(good.seen().len(), 1);
    // Another name, an authority that nobody knows, no TLS at all.
    let plain = Callback::start().await?;
    for url in [
        format!("https://127.0.0.1:{}/", good.port),
        format!("https://127.0.0.1:{}/", stranger.port),
        format!("https://localhost:{}/", plain.port),
        format!("http://localhost:{}/", good.port),
    ] {
        register(&server, &id, &to(url)).await?;
        let message = raises(&server, &id, "echo()").await?;
        assert!(message.contains("cannot reach the callback"), "{message}");
    }
    assert_eq!(
        (good.seen().len(), stranger.seen().len(), plain.seen().len()),
        (1, 0, 0)
    );
    Ok(())
}
