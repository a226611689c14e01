//! Output as a model is shown it: whole where it is short, else its beginning and its end.

use super::Content;
use crate::blocks::picture;
use crate::guest::GuestClient;
use crate::shortened::TAIL;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use ringfence_proto::{
    Cause, Certificate, Ended, Event, ExecResult, Exit, JobEnd, Output, OutputQuery, Rich,
};

/// Most images of one answer, and most bytes of each.
const IMAGES: usize = 16;
const IMAGE: usize = 8 << 20;

/// Both streams of a job that has ended.
pub(super) struct Streams {
    pub stdout: String,
    pub stderr: String,
}

impl Streams {
    /// Where a stream was cut, the end of it is fetched from the guest, and `note` says in a line
    /// of its own how many bytes of which stream are missing from which position on.
    pub(super) async fn of(
        guest: &GuestClient,
        done: &ExecResult,
        note: impl Fn(&str, u64, u64) -> String,
    ) -> Self {
        let (out, err) = (Cut::of(&done.stdout), Cut::of(&done.stderr));
        let (mut out_end, mut err_end) = (Vec::new(), Vec::new());
        if out.is_some() || err.is_some() {
            let from = OutputQuery {
                stdout: out.as_ref().map_or(done.stdout.total, |cut| cut.end),
                stderr: err.as_ref().map_or(done.stderr.total, |cut| cut.end),
                results: u32::MAX,
                follow: false,
            };
            (out_end, err_end) = ends(guest, &done.id, &from).await;
        }
        let joined = |name: &str, output: &Output, cut: Option<Cut>, end: &[u8]| match cut {
            None => String::from_utf8_lossy(&output.data.0).into_owned(),
            Some(cut) => cut.joined(&output.data.0, end, |bytes, at| note(name, bytes, at)),
        };
        Self {
            stdout: joined("stdout", &done.stdout, out, &out_end),
            stderr: joined("stderr", &done.stderr, err, &err_end),
        }
    }
}

/// Where a stream that was cut goes on.
struct Cut {
    total: u64,
    end: u64,
}

impl Cut {
    fn of(output: &Output) -> Option<Self> {
        let head = output.data.0.len() as u64;
        (output.total > head).then(|| Self {
            total: output.total,
            end: output.total.saturating_sub(TAIL).max(head),
        })
    }

    fn joined(&self, head: &[u8], end: &[u8], note: impl Fn(u64, u64) -> String) -> String {
        let head = whole_start(head);
        let end = whole_end(end);
        let shown = (head.len() + end.len()) as u64;
        let left_out = self.total.saturating_sub(shown);
        let mut text = String::from_utf8_lossy(head).into_owned();
        if left_out > 0 {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text += &note(left_out, head.len() as u64);
            if !end.is_empty() {
                text.push('\n');
            }
        }
        text + &String::from_utf8_lossy(end)
    }
}

/// Without a character that the cut went through.
fn whole_start(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => &bytes[..e.valid_up_to()],
        _ => bytes,
    }
}

fn whole_end(bytes: &[u8]) -> &[u8] {
    let inner = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let skip = bytes.iter().take(3).take_while(inner).count();
    &bytes[skip..]
}

/// The latest bytes of both streams, as far as the guest still has them.
async fn ends(guest: &GuestClient, job: &str, from: &OutputQuery) -> (Vec<u8>, Vec<u8>) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let Ok(mut events) = guest.job_events(job, from).await else {
        return (stdout, stderr);
    };
    while let Some(Ok(event)) = events.next().await {
        let (into, data) = match event {
            Event::Stdout { data, .. } => (&mut stdout, data),
            Event::Stderr { data, .. } => (&mut stderr, data),
            Event::End(_) => break,
            _ => continue,
        };
        // What a guest sends too much of is not what was asked for.
        let room = (TAIL as usize).saturating_sub(into.len());
        into.extend(data.0.iter().take(room));
    }
    (stdout, stderr)
}

/// Figures and pictures among the results; what is not really one is left out.
pub(super) fn images(results: &[Rich]) -> Vec<Content> {
    let each = results.iter().filter_map(|rich| {
        let mut kinds = rich.data.iter();
        kinds.find_map(|(kind, data)| kind.starts_with("image/").then(|| image(data))?)
    });
    each.take(IMAGES).collect()
}

fn image(data: &str) -> Option<Content> {
    let data: String = data.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(&data).ok()?;
    image_of(&bytes)
}

/// The picture that a file holds.
pub(super) fn image_of(bytes: &[u8]) -> Option<Content> {
    let (_, media_type) = picture(bytes).filter(|(kind, _)| *kind == "image")?;
    (bytes.len() <= IMAGE).then(|| Content::Image {
        media_type: media_type.to_owned(),
        data: STANDARD.encode(bytes),
    })
}

/// Whether a certificate says more than the status: a cut is told of where it is, and a signal by
/// its number.
pub(super) fn is_news(certificate: &Certificate) -> bool {
    certificate.ended != Ended::Output
        && !matches!(certificate.cause, Cause::Killed | Cause::Crashed)
}

/// The number that a shell would give the end of a command.
pub(super) fn shell_status(end: &JobEnd) -> i32 {
    match end.exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128_i32.saturating_add(signal),
        Exit::Lost => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_go_between_characters() {
        let cut = Cut { total: 20, end: 17 };
        let joined = cut.joined("aé".as_bytes().split_at(2).0, "éz".as_bytes(), |n, at| {
            format!("[{n} at {at}]")
        });
        assert_eq!(joined, "a\n[16 at 1]\néz");
    }

    #[test]
    fn only_pictures_are_images() {
        let rich = |kind: &str, bytes: &[u8]| Rich {
            kind: "display".to_owned(),
            data: [(kind.to_owned(), STANDARD.encode(bytes))].into(),
        };
        let png = b"\x89PNG\r\n\x1a\nrest";
        let found = images(&[
            rich("image/png", png),
            rich("image/png", b"<script>"),
            rich("text/html", png),
        ]);
        assert_eq!(
            found,
            [Content::Image {
                media_type: "image/png".to_owned(),
                data: STANDARD.encode(png)
            }]
        );
    }
}
