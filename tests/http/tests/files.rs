//! Files over HTTP: the contract's routes, our own, and what attackers try on both.

use futures_util::StreamExt as _;
use reqwest::multipart::{Form, Part};
use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Status and body of an upload.
async fn upload(server: &Server, id: &str, form: Form) -> Outcome<(u16, Value)> {
    let url = format!("{}/sessions/{id}/files", server.url);
    let answer = server.http.post(url).multipart(form).send().await?;
    let status = answer.status().as_u16();
    Ok((status, answer.json().await?))
}

fn file(bytes: impl Into<Vec<u8>>, name: &str) -> Part {
    Part::bytes(bytes.into()).file_name(name.to_owned())
}

async fn put(server: &Server, id: &str, path: &str, bytes: &[u8]) -> Outcome<(u16, Value)> {
    let form = Form::new().text("path", path.to_owned());
    upload(server, id, form.part("file", file(bytes, "x"))).await
}

async fn download(server: &Server, id: &str, path: &str) -> Outcome<reqwest::Response> {
    let url = format!("{}/sessions/{id}/files", server.url);
    Ok(server.http.get(url).query(&[("path", path)]).send().await?)
}

async fn names(server: &Server, id: &str) -> Outcome<Vec<String>> {
    let (_, tree) = server
        .get(&format!("/sessions/{id}/files/tree?recursive=true"))
        .await?;
    let entries = tree["entries"].as_array().ok_or("no entries")?;
    let name = |entry: &Value| entry["path"].as_str().unwrap_or_default().to_owned();
    Ok(entries.iter().map(name).collect())
}

#[tokio::test]
async fn a_file_goes_up_and_comes_down() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let form = Form::new().part("file", file("a,b\n1,2\n", "data.csv"));
    let (status, made) = upload(&server, id, form).await?;
    assert_eq!(
        (status, &made),
        (201, &json!({"path": "data.csv", "size_bytes": 8}))
    );
    let answer = download(&server, id, "data.csv").await?;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/csv");
    assert_eq!(answer.headers()["content-length"], "8");
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    assert_eq!(answer.bytes().await?, "a,b\n1,2\n");
    // The code sees it, also below /v1 and by its absolute name.
    let shown = server.code(id, "print(open('data.csv').read())").await?;
    assert_eq!(shown["stdout"], "a,b\n1,2\n");
    assert_eq!(
        download(&server, id, "/workspace/data.csv").await?.status(),
        200
    );
    let (status, _) = server.get(&format!("/v1/sessions/{id}/files/list")).await?;
    assert_eq!(status, 200);
    // Another session does not.
    let other = server.session().await?;
    assert_eq!(download(&server, &other, "data.csv").await?.status(), 404);
    let unknown = format!("sbx_{}", "0".repeat(32));
    assert_eq!(download(&server, &unknown, "data.csv").await?.status(), 404);
    assert_eq!(put(&server, &unknown, "a", b"").await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn the_path_may_come_before_or_after_the_file_of_any_size() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    for size in [0, 1, 3_000_000] {
        let bytes: Vec<u8> = (0..size).map(|n: u32| (n % 251) as u8).collect();
        for (way, name) in ["before/x.bin", "after/x.bin", "none.bin"]
            .into_iter()
            .enumerate()
        {
            let part = file(bytes.clone(), "some/folder/none.bin");
            let form = match way {
                0 => Form::new().text("path", name).part("file", part),
                1 => Form::new().part("file", part).text("path", name),
                _ => Form::new().part("file", part).text("more", "ignored"),
            };
            let (status, made) = upload(&server, id, form).await?;
            assert_eq!((status, &made["path"]), (201, &json!(name)), "{size}");
            assert_eq!(made["size_bytes"], size);
            let back = download(&server, id, name).await?.bytes().await?;
            assert!(
                back == bytes,
                "{name}: {} of {size} bytes came back",
                back.len()
            );
        }
    }
    let left = names(&server, id).await?;
    assert_eq!(
        left,
        ["after", "after/x.bin", "before", "before/x.bin", "none.bin"]
    );
    Ok(())
}

#[tokio::test]
async fn forms_that_make_no_sense_say_where() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let (status, said) = upload(&server, id, Form::new().text("path", "a")).await?;
    assert_eq!(
        (status, &said["detail"][0]["loc"]),
        (422, &json!(["body", "file"]))
    );
    let (status, said) = server
        .post(&format!("/sessions/{id}/files"), &json!({}))
        .await?;
    assert_eq!(
        (status, &said["detail"][0]["type"]),
        (422, &json!("missing"))
    );
    for name in ["..", "a/", "a\\"] {
        let form = Form::new().part("file", file("x", name));
        let (status, said) = upload(&server, id, form).await?;
        assert_eq!(
            (status, &said["detail"][0]["loc"]),
            (422, &json!(["body", "path"])),
            "{name}"
        );
    }
    let two = Form::new()
        .part("file", file("x", "a"))
        .part("file", file("y", "b"));
    assert_eq!(upload(&server, id, two).await?.0, 422);
    assert_eq!(names(&server, id).await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn what_is_too_large_leaves_nothing() -> Outcome {
    let server = Server::start(&["--max-upload", "1000000"])?;
    let id = &server.session().await?;
    let exact = vec![7; 1_000_000];
    assert_eq!(put(&server, id, "exact", &exact).await?.0, 201);
    let over = vec![7; 1_000_001];
    assert_eq!(put(&server, id, "over", &over).await?.0, 413);
    let late = Form::new()
        .part("file", file(over.clone(), "late"))
        .text("path", "late");
    assert_eq!(upload(&server, id, late).await?.0, 413);
    // Without a length at all.
    let pieces = (0..20).map(|_| Ok::<_, std::io::Error>(vec![7; 100_000]));
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let form = Form::new()
        .text("path", "chunked")
        .part("file", Part::stream(body).file_name("c"));
    assert_eq!(upload(&server, id, form).await?.0, 413);
    let url = format!("{}/sessions/{id}/tar", server.url);
    let answer = server.http.put(url).body(over).send().await?;
    assert_eq!(answer.status(), 413);
    assert_eq!(names(&server, id).await?, ["exact"]);
    Ok(())
}

/// What a client does when it has sent what it has to send.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Waits,
    Leaves,
}

/// Sends a request as it is, and gives the first line of the answer; empty when there is none.
async fn raw(server: &Server, head: &str, body: &[u8], then: Then) -> Outcome<String> {
    let address = server.url.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(head.replace('\n', "\r\n").as_bytes())
        .await?;
    // A server that has heard enough may have hung up.
    let _ = stream.write_all(body).await;
    if then == Then::Leaves {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn form_head(id: &str, length: usize) -> String {
    format!(
        "POST /sessions/{id}/files HTTP/1.1\nHost: localhost\nConnection: close\n\
         Content-Type: multipart/form-data; boundary=B\nContent-Length: {length}\n\n"
    )
}

fn form_body(name: &str, path: Option<&str>, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(path) = path {
        let head =
            format!("--B\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n{path}\r\n");
        body.extend_from_slice(head.as_bytes());
    }
    let head = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=";
    body.extend_from_slice(format!("{head}\"{name}\"\r\n\r\n").as_bytes());
    body.extend_from_slice(bytes);
    body.extend_from_slice(b"\r\n--B--\r\n");
    body
}

/// Whether there was no answer, or one with such a status.
fn none_or(line: &str, statuses: &[&str]) -> bool {
    let status = line.split(' ').nth(1);
    status.is_none_or(|status| statuses.contains(&status))
}

#[tokio::test]
async fn half_a_body_leaves_nothing() -> Outcome {
    let server = Server::start(&["--max-upload", "1000000"])?;
    let id = &server.session().await?;
    put(&server, id, "kept", b"as it was").await?;
    for path in [Some("kept"), None] {
        let whole = form_body("kept", path, &vec![b'x'; 600_000]);
        for part in [10, 100, 1000, 300_000, 599_999, whole.len() - 4] {
            let line = raw(
                &server,
                &form_head(id, whole.len()),
                &whole[..part],
                Then::Leaves,
            )
            .await?;
            // Its sender is gone: no answer is as good as one that says what was wrong.
            assert!(none_or(&line, &["422", "400"]), "{part}: {line}");
        }
    }
    // A length that is a lie: less than was sent, and more than may be.
    let whole = form_body("lie", None, &vec![b'x'; 600_000]);
    let line = raw(&server, &form_head(id, 300_000), &whole, Then::Leaves).await?;
    assert!(none_or(&line, &["422", "400", "413"]), "{line}");
    let line = raw(
        &server,
        &form_head(id, 5_000_000_000),
        &whole[..100],
        Then::Leaves,
    )
    .await?;
    assert!(none_or(&line, &["422", "400", "413"]), "{line}");
    let eager =
        form_head(id, 5_000_000_000).replace("\nConnection", "\nExpect: 100-continue\nConnection");
    assert!(
        raw(&server, &eager, b"", Then::Waits)
            .await?
            .contains(" 413 ")
    );
    // Headers of a part without an end.
    let mut endless = b"--B\r\nContent-Disposition: form-data; name=\"file\"; x=".to_vec();
    endless.extend(vec![b'x'; 3_000_000]);
    let line = raw(
        &server,
        &form_head(id, endless.len()),
        &endless,
        Then::Waits,
    )
    .await?;
    assert!(none_or(&line, &["422", "400", "413"]), "{line}");
    // Folders are looked at by the code, so that nothing is hidden from this test.
    let mut files = String::new();
    for _ in 0..200 {
        let shown = server.bash(id, "ls -A; cat kept").await?;
        files = shown["stdout"].as_str().unwrap_or_default().to_owned();
        // What broke off is taken away by the guest when it hears of it.
        if files == "kept\nas it was" {
            return Ok(());
        }
    }
    Err(format!("left behind: {files}").into())
}

#[tokio::test]
async fn nothing_leads_out_of_the_workspace() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let links = "ln -s /etc out; ln -s /etc/passwd pw; ln -s ../../etc/passwd up; \
                 ln -s /tmp/new dangling; ln -s self self; mkdir d; ln -s ../.. d/far; \
                 echo ok > in; ln -s in good";
    server.bash(id, links).await?;
    let escapes = [
        "..",
        "../x",
        "a/../../x",
        "/etc/passwd",
        "/",
        "/workspace/../etc/passwd",
        "out/passwd",
        "pw",
        "up",
        "d/far/etc/passwd",
    ];
    for path in escapes {
        let status = download(&server, id, path).await?.status().as_u16();
        assert_eq!(status, 403, "download of {path}");
        // A file is put in its place by its name, which a path to a folder has none of.
        let status = put(&server, id, path, b"x").await?.0;
        assert!(
            status == 403 || (path == ".." && status == 422),
            "upload to {path}: {status}"
        );
        let query = format!("/sessions/{id}/files/list?path={path}");
        let status = server.get(&query).await?.0;
        assert!([403, 422].contains(&status), "list of {path}: {status}");
        // A link is a thing in the workspace, and may go.
        if !["pw", "up"].contains(&path) {
            let query = format!("/sessions/{id}/files?path={path}");
            let status = server.ask("DELETE", &query, None).await?.0;
            assert!([403, 422].contains(&status), "delete of {path}: {status}");
        }
        for (from, to) in [(path, "here"), ("in", path)] {
            let body = json!({"from": from, "to": to, "overwrite": false});
            let status = server
                .post(&format!("/sessions/{id}/files/copy"), &body)
                .await?
                .0;
            let link = ["pw", "up"].contains(&path);
            assert!(
                [403, 422].contains(&status) || (link && [200, 409].contains(&status)),
                "copy of {from} to {to}: {status}"
            );
            let query = format!("/sessions/{id}/files?path=here");
            server.ask("DELETE", &query, None).await?;
        }
    }
    assert_eq!(put(&server, id, "dangling", b"x").await?.0, 403);
    assert!([400, 403].contains(&download(&server, id, "self").await?.status().as_u16()));
    assert_eq!(download(&server, id, "good").await?.text().await?, "ok\n");
    // A large upload whose path comes last takes another way, out of which nothing leads either.
    for path in ["../big", "/tmp/big", "out/big", "d/far/big"] {
        let part = file(vec![1; 1_000_000], "x");
        let form = Form::new().part("file", part).text("path", path);
        assert_eq!(upload(&server, id, form).await?.0, 403, "{path}");
    }
    let seen = server.bash(id, "ls -A / /tmp; ls -A; cat in").await?;
    let seen = seen["stdout"].as_str().unwrap_or_default();
    assert!(
        !seen.contains("big") && !seen.contains(".ringfence") && !seen.contains("new"),
        "{seen}"
    );
    Ok(())
}

#[tokio::test]
async fn odd_names_and_odd_things_are_refused_or_work() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    server
        .bash(
            id,
            "mkfifo fifo; mkdir dir; ln -s /dev/zero zero; truncate -s 200M sparse",
        )
        .await?;
    // A folder and what is no file: 400, and nobody waits for a writer.
    for path in ["dir", ".", "fifo"] {
        let answer = download(&server, id, path).await?;
        assert_eq!(answer.status(), 400, "{path}");
        let said: Value = answer.json().await?;
        assert!(said["detail"].is_string(), "{said}");
    }
    assert_eq!(download(&server, id, "zero").await?.status(), 403);
    assert_eq!(download(&server, id, "none").await?.status(), 404);
    let (status, said) = server.get(&format!("/sessions/{id}/files")).await?;
    assert_eq!((status, said["detail"].is_array()), (422, true));
    for path in ["a%00b", "%ff%fe", &"x".repeat(300), &"x/".repeat(3000), ""] {
        let (status, _) = server
            .get(&format!("/sessions/{id}/files?path={path}"))
            .await?;
        assert!([400, 404, 422].contains(&status), "{path:.20}: {status}");
    }
    for path in ["a\0b", &"x".repeat(300), &"y/".repeat(3000)] {
        let (status, _) = put(&server, id, path, b"x").await?;
        assert_eq!(status, 422, "{path:.20?}");
    }
    // Over a folder, over a fifo, and below a file.
    for size in [1, 1_000_000] {
        for path in ["dir", "fifo"] {
            assert_eq!(
                put(&server, id, path, &vec![1; size]).await?.0,
                422,
                "{path}"
            );
            let form = Form::new()
                .part("file", file(vec![1; size], "x"))
                .text("path", path);
            assert_eq!(upload(&server, id, form).await?.0, 422, "{path} {size}");
        }
    }
    assert_eq!(put(&server, id, "sparse/x", b"x").await?.0, 422);
    // A path that is no UTF-8, in a form.
    let mut body = form_body("f", None, b"x");
    let end = body.len() - 7;
    let part = b"--B\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n\xff\xfe\r\n";
    body.splice(end..end, part.iter().copied());
    assert!(
        raw(&server, &form_head(id, body.len()), &body, Then::Waits)
            .await?
            .contains(" 422 ")
    );
    // Names that look odd are names.
    for name in [
        "ü ñ.txt",
        "a'b\"c.txt",
        "-rf",
        "%2e%2e",
        "x\u{202e}y",
        "\\back",
    ] {
        let (status, made) = put(&server, id, name, b"odd").await?;
        assert_eq!((status, &made["path"]), (201, &json!(name)));
        let answer = download(&server, id, name).await?;
        assert_eq!(answer.status(), 200, "{name}");
        assert_eq!(answer.bytes().await?, "odd");
    }
    // 200 MB of nothing are streamed: the first piece is there before the last one is read.
    let answer = download(&server, id, "sparse").await?;
    assert_eq!(answer.headers()["content-length"], "209715200");
    let mut total = 0;
    let mut pieces = answer.bytes_stream();
    while let Some(piece) = pieces.next().await {
        total += piece?.len();
    }
    assert_eq!(total, 209_715_200);
    // A reader who leaves in the middle harms nobody.
    let mut pieces = download(&server, id, "sparse").await?.bytes_stream();
    pieces.next().await.ok_or("no piece")??;
    drop(pieces);
    assert_eq!(server.bash(id, "echo 1").await?["stdout"], "1\n");
    Ok(())
}

#[tokio::test]
async fn ranges_come_as_asked() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    put(&server, id, "ten.txt", b"0123456789").await?;
    let of = async |range: &str| -> Outcome<(u16, String, String)> {
        let url = format!("{}/sessions/{id}/files?path=ten.txt", server.url);
        let answer = server.http.get(url).header("range", range).send().await?;
        let status = answer.status().as_u16();
        let header = answer.headers().get("content-range");
        let header = header
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        Ok((status, header, answer.text().await?))
    };
    let part = |header: &str, text: &str| (206, header.to_owned(), text.to_owned());
    assert_eq!(of("bytes=2-4").await?, part("bytes 2-4/10", "234"));
    assert_eq!(of("bytes=7-").await?, part("bytes 7-9/10", "789"));
    assert_eq!(of("bytes=-2").await?, part("bytes 8-9/10", "89"));
    assert_eq!(of("bytes=8-99").await?, part("bytes 8-9/10", "89"));
    let (status, header, _) = of("bytes=10-").await?;
    assert_eq!((status, header.as_str()), (416, "bytes */10"));
    let (status, header, text) = of("bytes=0-1,4-5").await?;
    assert_eq!(
        (status, header.as_str(), text.as_str()),
        (200, "", "0123456789")
    );
    let (status, _) = server
        .ask("HEAD", &format!("/sessions/{id}/files?path=ten.txt"), None)
        .await?;
    assert_eq!(status, 200);
    Ok(())
}

#[tokio::test]
async fn the_list_has_files_only_and_is_sorted() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    server
        .bash(
            id,
            "mkdir sub; echo bb > b.txt; echo a > a.csv; echo c > sub/c.bin; ln -s a.csv l",
        )
        .await?;
    let (status, list) = server
        .get(&format!("/sessions/{id}/files/list?path=."))
        .await?;
    assert_eq!(status, 200);
    let files = list["files"].as_array().ok_or("no list")?;
    let paths: Vec<_> = files.iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, [&json!("a.csv"), &json!("b.txt")]);
    assert_eq!(files[1]["size_bytes"], 3);
    assert_eq!(files[0]["mime_type"], "text/csv");
    assert!(files[0]["modified_at"].as_f64() > Some(1.7e9));
    let (_, list) = server
        .get(&format!("/sessions/{id}/files/list?path=sub&other=1"))
        .await?;
    assert_eq!(list["files"][0]["path"], "sub/c.bin");
    assert_eq!(list["files"].as_array().map(Vec::len), Some(1));
    let (_, list) = server
        .get(&format!("/sessions/{id}/files/list?path=b.txt"))
        .await?;
    assert_eq!(list["files"][0]["path"], "b.txt");
    assert_eq!(
        server
            .get(&format!("/sessions/{id}/files/list?path=no"))
            .await?
            .0,
        404
    );
    assert_eq!(
        server
            .get(&format!("/sessions/{id}/files/list?path=../.."))
            .await?
            .0,
        403
    );
    Ok(())
}

#[tokio::test]
async fn our_own_routes_do_what_they_say() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let at = |route: &str| format!("/sessions/{id}/files/{route}");
    let ok = async |route: &str, body: Value| -> Outcome<Value> {
        let (status, answer) = server.post(&at(route), &body).await?;
        match status {
            200 => Ok(answer),
            _ => Err(format!("{route} {body}: {status} {answer}").into()),
        }
    };
    assert_eq!(ok("mkdir", json!({"path": "a/b"})).await?["kind"], "folder");
    let text = json!({"write": {"text": "one\ntwo\nthree\n"}});
    let made = ok("edit", json!({"path": "a/b/t.txt", "edit": text})).await?;
    assert_eq!(
        (&made["existed"], &made["total_lines"]),
        (&json!(false), &json!(3))
    );
    let diff = "--- t\n+++ t\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
    let edit = json!({"path": "a/b/t.txt", "edit": {"patch": {"diff": diff}}});
    assert_eq!(
        ok("edit", edit).await?["hunk"]["lines"],
        json!(["-two", "+2"])
    );
    let undone = ok("edit", json!({"path": "a/b/t.txt", "edit": "undo"})).await?;
    assert_eq!(undone["hunk"]["lines"], json!(["-2", "+two"]));
    ok("copy", json!({"from": "a/b", "to": "copy"})).await?;
    ok("move", json!({"from": "copy/t.txt", "to": "deep/er/m.txt"})).await?;
    let (status, _) = server
        .post(
            &at("move"),
            &json!({"from": "a/b/t.txt", "to": "deep/er/m.txt"}),
        )
        .await?;
    assert_eq!(status, 409);
    let found = ok("glob", json!({"pattern": "**/*.txt"})).await?;
    let paths: Vec<_> = found["entries"]
        .as_array()
        .ok_or("none")?
        .iter()
        .map(|e| &e["path"])
        .collect();
    assert_eq!(paths, [&json!("a/b/t.txt"), &json!("deep/er/m.txt")]);
    let found = ok("grep", json!({"pattern": "^tw", "path": "a", "context": 1})).await?;
    assert_eq!(found["files"][0]["path"], "a/b/t.txt");
    assert_eq!(found["files"][0]["lines"].as_array().map(Vec::len), Some(3));
    let (_, stat) = server.get(&at("stat?path=a/b/t.txt")).await?;
    assert_eq!(
        (&stat["kind"], &stat["size_bytes"]),
        (&json!("file"), &json!(14))
    );
    let (_, tree) = server.get(&at("tree?recursive=true&depth=2")).await?;
    let paths: Vec<_> = tree["entries"]
        .as_array()
        .ok_or("none")?
        .iter()
        .map(|e| &e["path"])
        .collect();
    assert_eq!(
        paths,
        [
            &json!("a"),
            &json!("a/b"),
            &json!("copy"),
            &json!("deep"),
            &json!("deep/er")
        ]
    );
    let gone = |path: &str| format!("/sessions/{id}/files?path={path}");
    assert_eq!(server.ask("DELETE", &gone("deep"), None).await?.0, 409);
    assert_eq!(
        server
            .ask("DELETE", &gone("deep&recursive=true"), None)
            .await?
            .0,
        204
    );
    assert_eq!(server.ask("DELETE", &gone("deep"), None).await?.0, 404);
    // What nobody knows is refused, with its place; the root is not for the caller to choose.
    for (route, body) in [
        ("mkdir", json!({"path": "x", "root": "/"})),
        ("glob", json!({"pattern": "*", "patern": "*"})),
        ("grep", json!({"pattern": "("})),
        (
            "edit",
            json!({"path": "x", "edit": {"insert": {"after": 0, "text": "", "more": 1}}}),
        ),
        ("mkdir", json!({"path": "x", "mode": 5000})),
        ("move", json!({"from": "a"})),
    ] {
        let (status, said) = server.post(&at(route), &body).await?;
        assert_eq!(status, 422, "{route} {body}");
        assert_eq!(said["detail"][0]["loc"][0], "body", "{said}");
    }
    assert_eq!(server.get(&at("stat?path=a&x=1")).await?.0, 422);
    assert_eq!(server.get(&at("tree?depth=3")).await?.0, 422);
    Ok(())
}

#[tokio::test]
async fn a_folder_goes_up_and_comes_down_as_an_archive() -> Outcome {
    let server = Server::start(&[])?;
    let (from, to) = (server.session().await?, server.session().await?);
    server.bash(&from, "mkdir -p d/e; echo 1 > d/one; head -c 5000000 /dev/urandom > d/e/big; ln -s one d/link").await?;
    let url = |id: &str, path: &str| format!("{}/sessions/{id}/tar?path={path}", server.url);
    let answer = server.http.get(url(&from, "d")).send().await?;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/x-tar");
    let archive = answer.bytes().await?;
    let answer = server
        .http
        .put(url(&to, "new/place"))
        .body(archive.clone())
        .send()
        .await?;
    assert_eq!(answer.status(), 204);
    let sum = "md5sum < e/big; cat link";
    let a = server.bash(&from, &format!("cd d; {sum}")).await?;
    let b = server.bash(&to, &format!("cd new/place; {sum}")).await?;
    assert_eq!(a["stdout"], b["stdout"]);
    // What is no archive, and half of one.
    for bad in [archive.slice(..archive.len() / 2), vec![b'x'; 5000].into()] {
        let answer = server.http.put(url(&to, "bad")).body(bad).send().await?;
        assert_eq!(answer.status(), 422);
    }
    assert_eq!(
        server.http.get(url(&from, "none")).send().await?.status(),
        404
    );
    assert_eq!(
        server.http.get(url(&from, "d/one")).send().await?.status(),
        422
    );
    assert_eq!(
        server.http.get(url(&from, "../..")).send().await?.status(),
        403
    );
    assert_eq!(
        server
            .http
            .put(url(&to, "../up"))
            .body(archive)
            .send()
            .await?
            .status(),
        403
    );
    Ok(())
}
