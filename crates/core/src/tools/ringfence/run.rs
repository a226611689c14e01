//! `python`, `bash`, and what they leave running.

use crate::blocks::explain;
use crate::guest::is_name;
use crate::sessions::MAIN;
use crate::shortened::{HEAD, TAIL, shortened};
use crate::tools::shown::{Streams, images};
use crate::tools::{Answer, Args, BadArgument, Content, Done, Runner, refused};
use crate::work::Work;
use futures_util::StreamExt as _;
use ringfence_proto::{
    Command, Ended, Event, ExecRequest, ExecResult, Exit, FileKind, JobEnd, JobState, OutputQuery,
    Rich, RunRequest, signal_name,
};
use std::time::Duration;

/// Most files that an answer names.
const FILES: usize = 20;

pub(super) async fn python(on: &dyn Runner, args: Args) -> Done {
    let timeout = args.seconds("timeout");
    let request = RunRequest {
        code: args.text("code").to_owned(),
        timeout_ms: Some(timeout.as_millis() as u64),
        output_limit: Some(HEAD),
        cpu_seconds: Some(on.limits().cpu_seconds),
        report_files: true,
        ..RunRequest::default()
    };
    let kernel = MAIN.to_owned();
    let done = on.run(Work::Run { kernel, request }).await?;
    report(on, &done, timeout).await
}

pub(super) async fn bash(on: &dyn Runner, args: Args) -> Done {
    let command = args.text("command");
    if command.contains('\0') {
        return Err(BadArgument::value("command", "must have no null bytes").into());
    }
    let timeout = args.seconds("timeout");
    let mut request = ExecRequest::new(Command::Shell(command.to_owned()));
    request.output_limit = Some(HEAD);
    request.limits.cpu_seconds = Some(on.limits().cpu_seconds);
    if args.flag("background") {
        request.detached = true;
        let job = on.start(Work::Exec(request)).await?.id;
        return Ok(Answer::text(format!(
            "[{job} runs in the background: read_output shows what it prints, stop ends it]"
        )));
    }
    request.timeout_ms = Some(timeout.as_millis() as u64);
    request.report_files = true;
    let done = on.run(Work::Exec(request)).await?;
    report(on, &done, timeout).await
}

/// All that a model has to know of a job that ended.
async fn report(on: &dyn Runner, done: &ExecResult, timeout: Duration) -> Done {
    let job = done.id.as_str();
    let guest = on.session().guest().await?;
    let streams = Streams::of(&guest, done, |stream, bytes, at| {
        format!(
            "[{bytes} bytes left out: read_output with job={job}, stream={stream}, offset={at} \
             shows them]"
        )
    });
    let streams = streams.await;
    let mut parts = Vec::new();
    if let Some(news) = on.session().take_news() {
        parts.push(format!("[{news}]"));
    }
    let mut printed = |label: &str, text: &str| {
        let text = text.strip_suffix('\n').unwrap_or(text);
        if !text.is_empty() {
            parts.push(format!("{label}{text}"));
        }
    };
    printed("", &streams.stdout);
    printed("[stderr]\n", &streams.stderr);
    parts.extend(done.results.iter().filter_map(value));
    parts.extend(ending(&done.end, timeout));
    if parts.is_empty() && done.results.is_empty() {
        parts.push("(no output)".to_owned());
    }
    parts.extend(files(&done.end));
    let images = images(&done.results);
    if parts.is_empty() && images.is_empty() {
        parts.push("(no output)".to_owned());
    }
    let mut answer = Answer::text(parts.join("\n"));
    answer
        .content
        .retain(|piece| !matches!(piece, Content::Text { text } if text.is_empty()));
    Ok(answer.and(images))
}

/// The value of the last expression, or what was displayed, where that is text.
fn value(rich: &Rich) -> Option<String> {
    if rich.data.keys().any(|kind| kind.starts_with("image/")) {
        return None;
    }
    let text = rich.data.get("text/plain")?;
    let text = shortened(text, |bytes| {
        format!("[{bytes} bytes left out: look at parts of the value]")
    });
    let label = match rich.kind.as_str() {
        "value" => "[value]",
        _ => "[display]",
    };
    let gap = if text.contains('\n') { '\n' } else { ' ' };
    Some(format!("{label}{gap}{text}"))
}

/// How it ended, where there is something to say about it.
fn ending(end: &JobEnd, timeout: Duration) -> Vec<String> {
    let mut said = Vec::new();
    match end.exit {
        Exit::Code(0) | Exit::Lost => {}
        Exit::Code(code) => said.push(format!("[exit status {code}]")),
        Exit::Signal(signal) if end.certificate.is_none() => {
            said.push(format!("[ended by {}]", signal_name(signal)));
        }
        Exit::Signal(_) => {}
    }
    let certificate = end.certificate.as_ref();
    // Output that was cut is told of where it was.
    if let Some(certificate) = certificate.filter(|c| c.ended != Ended::Output) {
        said.push(format!("[{}]", explain(certificate, timeout)));
    }
    if end.left_running > 0 {
        said.push(format!(
            "[{} processes run on in the background]",
            end.left_running
        ));
    }
    said
}

fn files(end: &JobEnd) -> Option<String> {
    let changed = end.changed.iter();
    let named: Vec<String> = changed
        .filter(|entry| entry.kind == FileKind::File && entry.path.len() <= 255)
        .take(FILES)
        .map(|entry| format!("{} ({} bytes)", entry.path, entry.size))
        .collect();
    (!named.is_empty()).then(|| format!("[files written: {}]", named.join(", ")))
}

fn job_of(args: &Args) -> Result<&str, BadArgument> {
    let job = args.text("job");
    match is_name(job) {
        true => Ok(job),
        false => Err(BadArgument::value(
            "job",
            "must be the id of a job, such as job_1f0c",
        )),
    }
}

pub(super) async fn read_output(on: &dyn Runner, args: Args) -> Done {
    let job = job_of(&args)?;
    let stream = args.text("stream");
    let offset = args.integer("offset").unsigned_abs();
    let guest = on.session().guest().await?;
    let info = match guest.job(job).await {
        Ok(info) => info,
        Err(failure) => return refused(failure),
    };
    let total = match stream {
        "stderr" => info.stderr_bytes,
        _ => info.stdout_bytes,
    };
    let mut from = OutputQuery {
        stdout: info.stdout_bytes,
        stderr: info.stderr_bytes,
        results: u32::MAX,
        follow: false,
    };
    match stream {
        "stderr" => from.stderr = offset,
        _ => from.stdout = offset,
    }
    let read = match offset >= total {
        true => Read::default(),
        false => part(guest.job_events(job, &from).await?, stream).await,
    };
    let mut text = String::from_utf8_lossy(&read.bytes).into_owned();
    if let Some((from, to)) = read.lost {
        text = format!("[bytes {from} to {to} are no longer kept]\n{text}");
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let state = match &info.state {
        JobState::Running => "it runs".to_owned(),
        JobState::Ended(end) => match end.exit {
            Exit::Code(code) => format!("it ended with exit status {code}"),
            Exit::Signal(signal) => format!("it was ended by {}", signal_name(signal)),
            Exit::Lost => "it ended without a status".to_owned(),
        },
    };
    let start = read.lost.map_or(offset, |(_, to)| to);
    let next = start.saturating_add(read.bytes.len() as u64);
    text += &match next < total {
        true => {
            format!("[{job}: {state}; {stream} goes on at offset {next}, it has {total} bytes]")
        }
        false => format!("[{job}: {state}; this is the end of {stream} at offset {next}]"),
    };
    Ok(Answer::text(text))
}

/// A part of an output.
#[derive(Default)]
struct Read {
    bytes: Vec<u8>,
    /// What the guest has not kept.
    lost: Option<(u64, u64)>,
}

async fn part(mut events: crate::guest::Events, stream: &str) -> Read {
    const MOST: usize = (HEAD + TAIL) as usize;
    let mut read = Read::default();
    while read.bytes.len() < MOST {
        // What runs has no end to tell, so the stream breaks off there.
        let Some(Ok(event)) = events.next().await else {
            break;
        };
        let data = match event {
            Event::Stdout { data, .. } if stream == "stdout" => data,
            Event::Stderr { data, .. } if stream == "stderr" => data,
            Event::Skipped {
                stream: of,
                from,
                to,
            } if of == stream => {
                read.lost = Some((from, to));
                continue;
            }
            Event::End(_) => break,
            _ => continue,
        };
        let room = MOST - read.bytes.len();
        read.bytes.extend(data.0.iter().take(room));
    }
    read
}

pub(super) async fn stop(on: &dyn Runner, args: Args) -> Done {
    let job = job_of(&args)?;
    let guest = on.session().guest().await?;
    match guest.cancel(job).await {
        Ok(()) => Ok(Answer::text(format!("[{job} was stopped]"))),
        Err(failure) => refused(failure),
    }
}
