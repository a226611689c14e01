//! `GET`, `POST` and `DELETE /files/PATH`.

use crate::files::{self, Whole};
use crate::http::{self, Answer, Request};
use crate::server::Guest;
use ::http::{Method, header::ACCEPT};
use percent_encoding::percent_decode_str;
use ringfence_proto::{BODY_LIMIT, Code, Failure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

const BYTES: &str = "application/octet-stream";

#[derive(Debug, Serialize)]
struct FileContent {
    path: String,
    content: String,
}

/// What is to be written. The path beside it says the same as the one of the request.
#[derive(Debug, Deserialize)]
struct NewContent {
    #[serde(default)]
    content: String,
}

pub(super) async fn route(guest: &Arc<Guest>, request: Request, encoded: &str) -> Answer {
    let path = decoded(encoded, &guest.config.workspace)?;
    match *request.method() {
        Method::GET if wants_bytes(&request) => files::stream(guest, &path).await,
        Method::GET => read(guest, path).await,
        Method::POST => {
            let NewContent { content } = http::body(request).await?;
            files::write_whole(guest, &path, content.clone()).await?;
            http::json(&FileContent { path, content })
        }
        Method::DELETE => {
            files::remove_whole(guest, &path).await?;
            http::empty()
        }
        ref method => Err(super::nothing(method, "/files/PATH")),
    }
}

fn wants_bytes(request: &Request) -> bool {
    let accept = request.headers().get_all(ACCEPT).iter();
    accept
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains(BYTES))
}

async fn read(guest: &Arc<Guest>, path: String) -> Answer {
    let hint = format!("ask for it with `Accept: {BYTES}`");
    let bytes = match files::read_whole(guest, &path, BODY_LIMIT).await? {
        Whole::Bytes(bytes) => bytes,
        Whole::TooLarge => {
            let message = format!("cannot read {path} as text: it is over {BODY_LIMIT} bytes");
            return Err(Failure::new(Code::TooLarge, message).hint(hint));
        }
    };
    let content = String::from_utf8(bytes).map_err(|_| {
        Failure::invalid(format!("cannot read {path} as text: it is not UTF-8")).hint(hint)
    })?;
    http::json(&FileContent { path, content })
}

/// The path that a client means. Some encode it once, some twice, and some leave the slash at
/// its start away, which stands in the request already.
fn decoded(encoded: &str, root: &Path) -> Result<String, Failure> {
    let mut path = decode(encoded)?;
    if !path.starts_with('/') {
        path = decode(&path)?;
    }
    let bare_root = root.strip_prefix("/").unwrap_or(root);
    if Path::new(&path).starts_with(bare_root) {
        path.insert(0, '/');
    }
    Ok(path)
}

fn decode(text: &str) -> Result<String, Failure> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|e| Failure::invalid("the path is not UTF-8").detail(e))?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::decoded;
    use std::path::Path;

    #[test]
    fn paths_are_decoded_until_they_are_paths() {
        let root = Path::new("/sandbox/workspace");
        for (encoded, path) in [
            (
                "%252Fsandbox%252Fworkspace%252Fa.txt",
                "/sandbox/workspace/a.txt",
            ),
            ("%2Fsandbox%2Fworkspace%2Fa.txt", "/sandbox/workspace/a.txt"),
            ("/sandbox/workspace/a.txt", "/sandbox/workspace/a.txt"),
            ("sandbox/workspace/a.txt", "/sandbox/workspace/a.txt"),
            ("a.txt", "a.txt"),
            ("dir%252Fa%2520b.txt", "dir/a b.txt"),
            ("dir%2Fa%20b.txt", "dir/a b.txt"),
            // A name with a percent sign: twice, and once.
            (
                "%252Fsandbox%252Fworkspace%252F50%2525.txt",
                "/sandbox/workspace/50%.txt",
            ),
            (
                "%2Fsandbox%2Fworkspace%2Fa%2520b",
                "/sandbox/workspace/a%20b",
            ),
            ("50%25.txt", "50%.txt"),
            // Never three times.
            ("%25252Fetc", "%2Fetc"),
            ("..%252F..%252Fetc", "../../etc"),
        ] {
            assert_eq!(decoded(encoded, root).unwrap(), path, "{encoded}");
        }
        assert!(decoded("%ff", root).is_err());
    }
}
