//! Files of sandboxes as resources: `ringfence://SESSION/PATH`, with the path below the workspace.

use super::{Client, DEFAULT, Server};
use crate::http::Scope;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::proto::{FileKind, ListResult, PathQuery, ReadQuery};
use ringfence_core::{Code, Failure, Session};
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use std::sync::Arc;

const SCHEME: &str = "ringfence://";

/// Most files that are listed, and levels of folders that are looked at.
const FILES: usize = 500;
const LEVELS: u32 = 4;

/// Most bytes of a file that is read.
const READ: u64 = 16 << 20;

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{session}}/{{+path}}"), "file")
        .with_title("A file of a sandbox")
        .with_description(format!(
            "A file below /workspace of the sandbox of that name; {DEFAULT} is your own one."
        ))
}

fn media_type(path: &str) -> String {
    mime_guess::from_path(path)
        .first_or_octet_stream()
        .to_string()
}

/// A session and a path in its workspace.
fn parse(uri: &str) -> Option<(String, String)> {
    let (session, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let decoded = |text: &str| {
        let bytes = percent_encoding::percent_decode_str(text);
        bytes.decode_utf8().ok().map(|text| text.into_owned())
    };
    let (session, path) = (decoded(session)?, decoded(path)?);
    (!session.is_empty() && !path.is_empty()).then_some((session, path))
}

fn uri(session: &str, path: &str) -> String {
    const ODD: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'/')
        .remove(b'.')
        .remove(b'_')
        .remove(b'-');
    let path = percent_encoding::utf8_percent_encode(path, ODD);
    format!("{SCHEME}{session}/{path}")
}

impl Server {
    /// A session that is there; looking at resources makes none.
    async fn there(&self, client: &Client, name: &str) -> Result<Arc<Session>, Failure> {
        let id = client.session(Some(name))?;
        let known = self.app.known(&client.caller, &id, Scope::Read).await;
        known.map_err(|problem| problem.failure().clone())
    }

    /// The files of the caller's own sandbox.
    pub(super) async fn files(&self, client: &Client) -> Result<Vec<Resource>, Failure> {
        if client.own.is_none() {
            return Ok(Vec::new());
        }
        let session = match self.there(client, DEFAULT).await {
            Ok(session) => session,
            Err(failure) if failure.code == Code::NotFound => return Ok(Vec::new()),
            Err(failure) => return Err(failure),
        };
        let query = PathQuery {
            recursive: true,
            depth: Some(LEVELS),
            ..PathQuery::new(".")
        };
        let list = async { session.guest().await?.get("/files/list", &query).await };
        let list: ListResult = list.await.map_err(|failure| self.lost(&session, failure))?;
        let files = list.entries.iter().filter(|entry| {
            let hidden = entry.path.split('/').any(|part| part.starts_with('.'));
            entry.kind == FileKind::File && !hidden
        });
        let resource = |entry: &ringfence_core::proto::Entry| {
            Resource::new(uri(DEFAULT, &entry.path), &entry.path)
                .with_mime_type(media_type(&entry.path))
                .with_size(entry.size)
        };
        Ok(files.take(FILES).map(resource).collect())
    }

    pub(super) async fn read(
        &self,
        client: &Client,
        uri: &str,
    ) -> Result<ReadResourceResult, Failure> {
        let (name, path) = parse(uri).ok_or_else(|| {
            Failure::invalid(
                "a resource is ringfence://SESSION/PATH, such as ringfence://default/a.txt",
            )
        })?;
        let session = self.there(client, &name).await?;
        let _use = session.begin();
        let query = ReadQuery {
            length: Some(READ + 1),
            ..ReadQuery::new(&path)
        };
        let bytes = async { session.guest().await?.read(&query).await };
        let bytes = bytes
            .await
            .map_err(|failure| self.lost(&session, failure))?;
        if bytes.len() as u64 > READ {
            let message = format!("cannot read {path}: it is over {READ} bytes");
            return Err(Failure::new(Code::TooLarge, message));
        }
        let content = match std::str::from_utf8(&bytes) {
            Ok(text) => ResourceContents::text(text, uri),
            Err(_) => ResourceContents::blob(STANDARD.encode(&bytes), uri),
        };
        let content = content.with_mime_type(media_type(&path));
        Ok(ReadResourceResult::new(vec![content]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_files_and_back() {
        let address = uri(DEFAULT, "a b/ü.txt");
        assert_eq!(address, "ringfence://default/a%20b/%C3%BC.txt");
        let parts = (DEFAULT.to_owned(), "a b/ü.txt".to_owned());
        assert_eq!(parse(&address), Some(parts));
        for bad in [
            "",
            "ringfence://",
            "ringfence://a",
            "ringfence:///a",
            "file:///etc/passwd",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
