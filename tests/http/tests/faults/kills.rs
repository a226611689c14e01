//! `kill -9` in the middle of uploads, creations and deletions.

use super::{Outcome, Server, children, guest, kill, sandboxes, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An upload of which half was sent.
async fn half_an_upload(server: &Server, id: &str) -> Outcome<TcpStream> {
    let part = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"half\"\r\n\r\n";
    let mut stream = TcpStream::connect(server.address()).await?;
    let head = format!(
        "POST /sessions/{id}/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=B\r\ncontent-length: 2000000\r\n\r\n{part}"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&vec![b'x'; 1_000_000]).await?;
    Ok(stream)
}

/// Waits until part of an upload is in the sandbox, where nobody sees it under its name.
async fn is_under_way(server: &Server, id: &str) -> Outcome {
    let command = "find . -type f -size +100k | grep -q .";
    until(async || Ok(server.bash(id, command).await?["return_code"] == 0)).await?;
    assert_ne!(server.bash(id, "cat half").await?["return_code"], 0);
    Ok(())
}

#[tokio::test]
async fn a_server_killed_during_an_upload_leaves_no_half_of_it() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &[], &[])?;
    let id = first.session().await?;
    let _half = half_an_upload(&first, &id).await?;
    is_under_way(&first, &id).await?;
    first.kill()?;
    let second = Server::start_on(&state, &[], &[])?;
    until(async || {
        let left = second.bash(&id, "find . -type f -size +100k").await?;
        Ok(left["stdout"] == "")
    })
    .await?;
    assert_eq!(second.code(&id, "print(1)").await?["stdout"], "1");
    Ok(())
}

#[tokio::test]
async fn a_guest_killed_during_an_upload_is_told() -> Outcome {
    let server = Server::start(&["--workspace-in", "memory", "--gc-interval", "1"])?;
    let id = server.session().await?;
    let mut half = half_an_upload(&server, &id).await?;
    is_under_way(&server, &id).await?;
    kill(guest(&server.state, &id)?);
    // The rest may find nobody who reads it.
    let _ = half.write_all(&vec![b'x'; 1_000_000]).await;
    let mut said = Vec::new();
    let _ = half.read_to_end(&mut said).await;
    let said = String::from_utf8_lossy(&said).into_owned();
    let status = said.split(' ').nth(1).unwrap_or_default();
    assert!(
        said.is_empty() || status.starts_with(['4', '5']) && said.contains("detail"),
        "{said}"
    );
    until(async || Ok(server.get(&format!("/sessions/{id}")).await?.0 == 404)).await?;
    until(async || Ok(sandboxes(&server.state).is_empty())).await
}

#[tokio::test]
async fn a_launcher_killed_during_creations_leaves_none_half_made() -> Outcome {
    let mut server = Server::start(&["--workspace-in", "memory", "--gc-interval", "1"])?;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let request = server.http.post(format!("{}/sessions", server.url));
        let request = request.json(&json!({}));
        asked.spawn(async move {
            let answer = request.send().await?;
            let status = answer.status().as_u16();
            reqwest::Result::Ok((status, answer.json::<Value>().await?))
        });
    }
    until(async || Ok(!sandboxes(&server.state).is_empty() || asked.is_empty())).await?;
    children(server.pid()).into_iter().for_each(kill);
    while let Some(answer) = asked.join_next().await {
        let (status, answer) = answer??;
        assert!(
            status == 201 || status >= 400 && answer["detail"].is_string(),
            "{status} {answer}"
        );
    }
    until(async || Ok(server.post("/sessions", &json!({})).await?.0 == 201)).await?;
    // Each that is there is whole, or goes.
    until(async || {
        let (_, page) = server.get("/sessions").await?;
        let known = page["sessions"].as_array().map(Vec::len);
        Ok(known == Some(sandboxes(&server.state).len()))
    })
    .await?;
    assert!(server.stop()?.success());
    assert!(sandboxes(&server.state).is_empty());
    Ok(())
}

#[tokio::test]
async fn a_guest_killed_during_its_deletion_is_gone() -> Outcome {
    let server = Server::start(&[])?;
    for _ in 0..4 {
        let id = server.session().await?;
        let pid = guest(&server.state, &id)?;
        let path = format!("/sessions/{id}");
        let killing = async {
            kill(pid);
            Ok(())
        };
        let ((status, answer), ()) = tokio::try_join!(server.ask("DELETE", &path, None), killing)?;
        assert_eq!(status, 204, "{answer}");
        assert_eq!(server.get(&path).await?.0, 404);
    }
    assert!(sandboxes(&server.state).is_empty());
    Ok(())
}
