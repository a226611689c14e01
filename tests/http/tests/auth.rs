//! Who gets in, and how far. Every refusal has a control that succeeds.

use ringfence_http_tests::{Outcome, Server, bearer, key, ringfence, until, verb};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// Status of a GET with these headers.
async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Outcome<u16> {
    Ok(send(server, "GET", path, headers).await?.0)
}

async fn send(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Outcome<(u16, reqwest::header::HeaderMap, String)> {
    let method = reqwest::Method::from_bytes(method.as_bytes())?;
    let mut request = reqwest::Client::new().request(method, format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.send().await?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Ok((status, headers, answer.text().await?))
}

#[tokio::test]
async fn a_key_opens_and_nothing_else_does() -> Outcome {
    let (server, key) = Server::start_with_key(&[])?;
    let bearer = format!("Bearer {key}");
    for good in [
        ("authorization", bearer.as_str()),
        ("authorization", &bearer.replacen("Bearer", "bearer", 1)),
        ("x-api-key", &key),
    ] {
        assert_eq!(get(&server, "/sessions", &[good]).await?, 200, "{good:?}");
    }
    let wrong = format!("rf_{}", "0".repeat(64));
    let almost = format!("{}0", &key[..key.len() - 1]);
    let (wrong_bearer, basic) = (format!("Bearer {wrong}"), format!("Basic {key}"));
    let protocol = format!("ringfence.key.{key}");
    let mut said = Vec::new();
    for bad in [
        vec![],
        vec![("authorization", wrong_bearer.as_str())],
        vec![("authorization", "Bearer ")],
        vec![("authorization", &basic)],
        vec![("authorization", &key)],
        vec![("x-api-key", &wrong)],
        vec![("x-api-key", if almost == key { "" } else { &almost })],
        // A subprotocol is for WebSockets.
        vec![("sec-websocket-protocol", protocol.as_str())],
    ] {
        let (status, headers, text) = send(&server, "GET", "/sessions", &bad).await?;
        assert_eq!(status, 401, "{bad:?}");
        assert_eq!(headers["www-authenticate"], "Bearer realm=\"ringfence\"");
        said.push(text);
    }
    said.dedup();
    assert_eq!(said.len(), 1, "nothing tells what was wrong: {said:?}");
    let body: Value = serde_json::from_str(&said[0])?;
    assert_eq!(body["code"], "unauthenticated");
    assert!(body["detail"].is_string() && body["hint"].is_string());
    // What is not there is not told to those who have no key.
    assert_eq!(get(&server, "/nowhere", &[]).await?, 401);
    assert_eq!(get(&server, "/nowhere", &[("x-api-key", &key)]).await?, 404);
    for open in ["/health", "/ready", "/v1/health", "/v1/ready"] {
        assert_eq!(get(&server, open, &[]).await?, 200, "{open}");
    }
    assert_eq!(get(&server, "/metrics", &[]).await?, 401);
    assert_eq!(get(&server, "/metrics", &[("x-api-key", &key)]).await?, 200);
    Ok(())
}

#[tokio::test]
async fn a_websocket_can_show_its_key_as_a_subprotocol() -> Outcome {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (server, key) = Server::start_with_key(&[])?;
    let id = server.session().await?;
    let upgrade = async |protocols: &str| -> Outcome<String> {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await?;
        let head = format!(
            "GET /sessions/{id}/pty HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n\
             connection: upgrade\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             sec-websocket-protocol: {protocols}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut part = [0; 1024];
            let read = stream.read(&mut part).await?;
            assert!(read > 0, "closed");
            answer.extend_from_slice(&part[..read]);
        }
        Ok(String::from_utf8_lossy(&answer).to_lowercase())
    };
    let good = upgrade(&format!("ringfence.pty, ringfence.key.{key}")).await?;
    assert!(good.starts_with("http/1.1 101"), "{good}");
    assert!(
        good.contains("sec-websocket-protocol: ringfence.pty\r\n"),
        "{good}"
    );
    for bad in [
        format!("ringfence.pty, ringfence.key.{key}0"),
        format!("ringfence.pty, {key}"),
        "ringfence.pty".to_owned(),
    ] {
        let answer = upgrade(&bad).await?;
        assert!(answer.starts_with("http/1.1 401"), "{answer}");
    }
    Ok(())
}

#[tokio::test]
async fn scopes_allow_what_they_say() -> Outcome {
    let (server, _) = Server::start_with_key(&[])?;
    let read = key(&server.state, "looker", &["--scope", "read"])?;
    let user = key(&server.state, "user", &[])?;
    let none = json!({});
    // The server has seen the new keys when they open something.
    until(async || {
        Ok((server.as_key(&user, "GET", "/sessions", None).await?.0 == 200).then_some(()))
    })
    .await?;
    let (status, made) = server
        .as_key(&user, "POST", "/sessions", Some(&none))
        .await?;
    assert_eq!(status, 201, "{made}");
    let (status, refused) = server
        .as_key(&read, "POST", "/sessions", Some(&none))
        .await?;
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")));
    assert_eq!(server.as_key(&read, "GET", "/sessions", None).await?.0, 200);
    assert_eq!(
        bearer(&read)?
            .get(format!("{}/metrics", server.url))
            .send()
            .await?
            .status(),
        200
    );
    let id = made["session_id"].as_str().ok_or("no id")?;
    let path = format!("/sessions/{id}");
    let exec = json!({"tool": "code_execution", "input": {"code": "print(1)"}});
    for (method, path, body) in [
        ("DELETE", path.clone(), None),
        ("PATCH", path.clone(), Some(&none)),
        ("POST", format!("{path}/exec"), Some(&exec)),
        ("POST", format!("{path}/suspend"), None),
    ] {
        let (status, _) = server.as_key(&read, method, &path, body).await?;
        assert_eq!(status, 403, "{method} {path}");
    }
    let write = json!({"tool": "bash_code_execution", "input": {"command": "echo 1 > a"}});
    for call in [&exec, &write] {
        let (status, _) = server
            .as_key(&user, "POST", &format!("{path}/exec"), Some(call))
            .await?;
        assert_eq!(status, 200);
    }
    // Whoever only looks sees the sessions of all; another one that uses them doesn't.
    let other = key(&server.state, "other", &[])?;
    let file = format!("{path}/files/stat?path=a");
    for (key, seen, answer) in [(&read, 1, 200), (&user, 1, 200), (&other, 0, 404)] {
        let page = until(async || {
            let (status, page) = server.as_key(key, "GET", "/sessions", None).await?;
            Ok((status == 200).then_some(page))
        })
        .await?;
        assert_eq!(page["sessions"].as_array().map(Vec::len), Some(seen));
        for path in [&path, &file] {
            let (status, body) = server.as_key(key, "GET", path, None).await?;
            assert_eq!(status, answer, "{path} {body}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn sessions_of_other_keys_are_not_there() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let (one, two) = (key(&state, "one", &[])?, key(&state, "two", &[])?);
    let admin = key(&state, "admin", &["--scope", "admin"])?;
    let server = Server::start_on(&state, &[], &[])?;
    let mut ids = Vec::new();
    for owner in [&one, &two] {
        // The same name of the caller's own means another session for each.
        let body = json!({"key": "conversation"});
        let (status, made) = server
            .as_key(owner, "POST", "/sessions", Some(&body))
            .await?;
        assert_eq!(status, 201, "{made}");
        ids.push(made["session_id"].as_str().ok_or("no id")?.to_owned());
    }
    assert_ne!(ids[0], ids[1]);
    let listed = async |key: &str| -> Outcome<Vec<String>> {
        let (status, page) = server.as_key(key, "GET", "/sessions", None).await?;
        assert_eq!(status, 200);
        let all = page["sessions"].as_array().ok_or("no list")?;
        Ok(all
            .iter()
            .filter_map(|s| Some(s["session_id"].as_str()?.to_owned()))
            .collect())
    };
    assert_eq!(listed(&one).await?, ids[..1]);
    assert_eq!(listed(&two).await?, ids[1..]);
    let mut all = ids.clone();
    all.sort();
    assert_eq!(listed(&admin).await?, all);
    let theirs = format!("/sessions/{}", ids[1]);
    let absent = format!("/sessions/sbx_{}", "0".repeat(32));
    let exec = json!({"tool": "code_execution", "input": {"code": "print(1)"}});
    for (method, rest, body) in [
        ("GET", "", None),
        ("PATCH", "", Some(&json!({}))),
        ("POST", "/exec", Some(&exec)),
        ("POST", "/suspend", None),
    ] {
        let (status, refused) = server
            .as_key(&one, method, &format!("{theirs}{rest}"), body)
            .await?;
        assert_eq!(status, 404, "{method} {rest} {refused}");
        // Word for word as for one that does not exist.
        let (_, unknown) = server
            .as_key(&one, method, &format!("{absent}{rest}"), body)
            .await?;
        let words = |v: &Value| {
            v.to_string()
                .replace(&ids[1], "ID")
                .replace(&absent[10..], "ID")
        };
        assert_eq!(words(&refused), words(&unknown));
    }
    // A delete of what is not there succeeds and deletes nothing.
    assert_eq!(server.as_key(&one, "DELETE", &theirs, None).await?.0, 204);
    assert_eq!(server.as_key(&two, "GET", &theirs, None).await?.0, 200);
    assert_eq!(server.as_key(&admin, "GET", &theirs, None).await?.0, 200);
    assert_eq!(server.as_key(&admin, "DELETE", &theirs, None).await?.0, 204);
    assert_eq!(server.as_key(&two, "GET", &theirs, None).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn the_key_of_a_session_opens_only_that() -> Outcome {
    let (server, _) = Server::start_with_key(&[])?;
    let (_, mine) = server.post("/sessions", &json!({})).await?;
    let (_, other) = server.post("/sessions", &json!({})).await?;
    let key = mine["session_key"].as_str().ok_or("no key")?;
    let id = mine["session_id"].as_str().ok_or("no id")?;
    let other_id = other["session_id"].as_str().ok_or("no id")?;
    let exec = json!({"tool": "code_execution", "input": {"code": "print(1)"}});
    let on = |id: &str, rest: &str| format!("/sessions/{id}{rest}");
    let ask = async |method: &str, path: &str, body: Option<&Value>| {
        server.as_key(key, method, path, body).await
    };
    assert_eq!(ask("GET", &on(id, ""), None).await?.0, 200);
    assert_eq!(ask("POST", &on(id, "/exec"), Some(&exec)).await?.0, 200);
    assert_eq!(ask("GET", &on(other_id, ""), None).await?.0, 404);
    assert_eq!(
        ask("POST", &on(other_id, "/exec"), Some(&exec)).await?.0,
        404
    );
    let (_, page) = ask("GET", "/sessions", None).await?;
    assert_eq!(page["sessions"].as_array().map(Vec::len), Some(1), "{page}");
    assert_eq!(page["sessions"][0]["session_id"], *id);
    assert!(
        page["sessions"][0]["session_key"].is_null(),
        "it is shown once"
    );
    assert_eq!(ask("POST", "/sessions", Some(&json!({}))).await?.0, 403);
    assert_eq!(ask("GET", "/metrics", None).await?.0, 403);
    // With the code of another session it is no key at all.
    let theirs = other["session_key"].as_str().ok_or("no key")?;
    let mixed = format!("{}{}", &key[..36], &theirs[36..]);
    assert_eq!(
        server.as_key(&mixed, "GET", &on(id, ""), None).await?.0,
        401
    );
    assert_eq!(ask("DELETE", &on(other_id, ""), None).await?.0, 204);
    assert_eq!(
        server.get(&on(other_id, "")).await?.0,
        200,
        "that deleted nothing"
    );
    assert_eq!(ask("DELETE", &on(id, ""), None).await?.0, 204);
    assert_eq!(ask("GET", &on(id, ""), None).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn the_key_of_a_session_is_no_way_around_the_key_that_made_it() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let slow = key(&state, "slow", &["--rate", "0.001"])?;
    let fast = key(&state, "fast", &[])?;
    let server = Server::start_on(&state, &["--burst", "3"], &[])?;
    let make = async |key: &str| -> Outcome<(String, String)> {
        let (status, made) = server
            .as_key(key, "POST", "/sessions", Some(&json!({})))
            .await?;
        assert_eq!(status, 201, "{made}");
        let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
        let path = format!("/sessions/{}", text("session_id"));
        Ok((path, text("session_key")))
    };
    let (path, limited) = make(&slow).await?;
    let (control, free) = make(&fast).await?;
    let ask = async |key: &str, path: &str| -> Outcome<u16> {
        Ok(server.as_key(key, "GET", path, None).await?.0)
    };
    // Both take from what the maker has left.
    assert_eq!(ask(&limited, &path).await?, 200);
    assert_eq!(ask(&slow, &path).await?, 200);
    assert_eq!(ask(&limited, &path).await?, 429);
    assert_eq!(ask(&slow, &path).await?, 429);
    for _ in 0..10 {
        assert_eq!(ask(&free, &control).await?, 200);
    }
    // And both end together.
    verb(&state, &["key", "rm", "fast"])?;
    until(async || Ok((ask(&free, &control).await? == 401).then_some(()))).await?;
    assert_eq!(ask(&fast, &control).await?, 401);
    assert_eq!(ask(&limited, &path).await?, 429, "others go on");
    Ok(())
}

#[tokio::test]
async fn quotas_of_a_key_hold() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let few = key(&state, "few", &["--max-sessions", "1"])?;
    let small = key(&state, "small", &["--max-memory", "300m"])?;
    let server = Server::start_on(&state, &[], &[])?;
    let make =
        async |key: &str, body: Value| server.as_key(key, "POST", "/sessions", Some(&body)).await;
    let (status, made) = make(&few, json!({})).await?;
    assert_eq!(status, 201, "{made}");
    let (status, refused) = make(&few, json!({})).await?;
    assert_eq!(
        (status, &refused["code"]),
        (429, &json!("too_many")),
        "{refused}"
    );
    let path = format!("/sessions/{}", made["session_id"].as_str().ok_or("no id")?);
    assert_eq!(server.as_key(&few, "DELETE", &path, None).await?.0, 204);
    assert_eq!(make(&few, json!({})).await?.0, 201);
    let memory = json!({"spec": {"limits": {"memory": "200m"}}});
    let (status, made) = make(&small, memory.clone()).await?;
    assert_eq!(status, 201, "{made}");
    assert_eq!(make(&small, memory).await?.0, 429);
    Ok(())
}

#[tokio::test]
async fn keys_come_and_go_while_the_server_runs() -> Outcome {
    let server = Server::start(&[])?;
    // Nobody has a key: everybody on this machine may.
    assert_eq!(server.get("/sessions").await?.0, 200);
    let first = key(&server.state, "first", &[])?;
    let second = key(&server.state, "second", &[])?;
    let becomes = async |key: Option<&str>, status: u16| {
        until(async || {
            let (now, _) = match key {
                Some(key) => server.as_key(key, "GET", "/sessions", None).await?,
                None => server.get("/sessions").await?,
            };
            Ok((now == status).then_some(()))
        })
        .await
    };
    becomes(None, 401).await?;
    becomes(Some(&first), 200).await?;
    verb(&server.state, &["key", "rm", "first"])?;
    becomes(Some(&first), 401).await?;
    assert_eq!(
        server.as_key(&second, "GET", "/sessions", None).await?.0,
        200
    );
    // The last key that goes takes everybody's access along, and does not give it to everybody.
    verb(&server.state, &["key", "rm", "second"])?;
    becomes(Some(&second), 401).await?;
    assert_eq!(server.get("/sessions").await?.0, 401);
    Ok(())
}

/// What a server says that does not start.
fn refusal(state: &std::path::Path, args: &[&str]) -> Outcome<String> {
    let mut child = Command::new(ringfence())
        .args(["serve", "--state-dir"])
        .arg(state)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    let stderr = child.stderr.take().ok_or("no stderr")?;
    for line in std::io::BufRead::lines(std::io::BufReader::new(stderr)) {
        let line = line?;
        if line.contains("listening on") {
            child.kill()?;
            child.wait()?;
            return Err(format!("it started: {line}").into());
        }
        said.push_str(&line);
        said.push('\n');
    }
    assert!(!child.wait()?.success());
    Ok(said)
}

#[tokio::test]
async fn the_network_is_not_served_without_keys() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    for address in ["0.0.0.0:0", "[::]:0"] {
        let said = refusal(&state, &["--listen", address])?;
        assert!(said.contains("without keys"), "{said}");
        assert!(
            said.contains("ringfence key add") && said.contains("--no-auth"),
            "{said}"
        );
    }
    let any = [("RINGFENCE_LISTEN", "0.0.0.0:0")];
    let off = [any[0], ("RINGFENCE_AUTH", "off")];
    let local = |server: &Server| {
        format!(
            "http://127.0.0.1:{}/sessions",
            server.url.rsplit(':').next().unwrap_or_default()
        )
    };
    for (args, env) in [(&["--no-auth"][..], &any[..]), (&[], &off)] {
        let server = Server::start_with(&state, args, env)?;
        let url = local(&server);
        assert_eq!(server.http.get(&url).send().await?.status(), 200);
        // In a network of containers it has a name.
        let named = server.http.get(&url).header("host", "sandbox:8080");
        assert_eq!(named.send().await?.status(), 200);
    }
    let key = key(&state, "one", &[])?;
    let server = Server::start_with(&state, &[], &any)?;
    let url = local(&server);
    assert_eq!(server.http.get(&url).send().await?.status(), 401);
    assert_eq!(bearer(&key)?.get(&url).send().await?.status(), 200);
    Ok(())
}

#[tokio::test]
async fn web_pages_do_not_reach_a_server_without_keys() -> Outcome {
    let server = Server::start(&[])?;
    let (address, port) = (
        server.address().to_owned(),
        server.address().rsplit(':').next().unwrap_or_default(),
    );
    let local = format!("localhost:{port}");
    for good in [
        address.as_str(),
        &local,
        "localhost",
        "[::1]:80",
        "127.0.0.1",
    ] {
        assert_eq!(
            get(&server, "/sessions", &[("host", good)]).await?,
            200,
            "{good}"
        );
    }
    for bad in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost.evil.example",
        "",
    ] {
        let (status, _, text) = send(&server, "GET", "/sessions", &[("host", bad)]).await?;
        assert_eq!(status, 403, "{bad} {text}");
        assert!(text.contains("\"code\":\"forbidden\""), "{text}");
        // What is open to everybody gives nothing away: probes may call us what they like.
        assert_eq!(get(&server, "/health", &[("host", bad)]).await?, 200);
    }
    let same = format!("http://{address}");
    let from = async |method: &str, origin: &str, more: &[(&str, &str)]| {
        let headers = [&[("origin", origin)], more].concat();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
            send(&server, method, "/sessions", &headers).await?.0,
        )
    };
    assert_eq!(from("POST", &same, &[]).await?, 201);
    let socket = [("upgrade", "websocket"), ("connection", "upgrade")];
    assert_eq!(from("GET", &same, &socket).await?, 200);
    for bad in [
        "http://evil.example",
        "null",
        "https://evil.example:8080",
        &format!("http://127.0.0.1.evil.example:{port}"),
        "http://localhost:1",
    ] {
        assert_eq!(from("POST", bad, &[]).await?, 403, "{bad}");
        assert_eq!(from("GET", bad, &socket).await?, 403, "{bad}");
    }
    // What shows a key is not sent by a browser on its own.
    let (server, key) = Server::start_with_key(&[])?;
    for headers in [
        [("x-api-key", key.as_str()), ("host", "ringfence.example")],
        [("x-api-key", &key), ("origin", "https://console.example")],
    ] {
        assert_eq!(get(&server, "/sessions", &headers).await?, 200);
    }
    Ok(())
}

#[tokio::test]
async fn a_socket_in_the_file_system_needs_no_key() -> Outcome {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let path = folder.path().join("socket");
    let listen = format!("unix:{}", path.display());
    let env = [("RINGFENCE_LISTEN", listen.as_str())];
    // What somebody else has there stays.
    std::fs::write(&path, "precious")?;
    assert!(Server::start_with(&state, &[], &env).is_err());
    assert_eq!(std::fs::read_to_string(&path)?, "precious");
    std::fs::remove_file(&path)?;
    let mut server = Server::start_with(&state, &[], &env)?;
    assert!(Server::start_with(&state, &[], &env).is_err(), "in use");
    // What a killed server left is nobody's.
    server.kill()?;
    assert!(path.exists());
    let _server = Server::start_with(&state, &[], &env)?;
    let mut stream = tokio::net::UnixStream::connect(&path).await?;
    stream
        .write_all(b"GET /sessions HTTP/1.1\r\nhost: whatever\r\nconnection: close\r\n\r\n")
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(())
}
