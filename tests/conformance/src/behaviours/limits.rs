use crate::{Outcome, Subject, Wrong, holds, same};
use ringfence_core::proto::{Cause, Exit};
use ringfence_core::spec::{LimitsSpec, SandboxSpec};
use ringfence_core::{Failure, Size};

fn limited(limits: LimitsSpec) -> SandboxSpec {
    SandboxSpec {
        limits,
        ..SandboxSpec::default()
    }
}

pub(super) fn little_memory() -> SandboxSpec {
    limited(LimitsSpec {
        memory: Some(Size(64 << 20)),
        ..LimitsSpec::default()
    })
}

pub(super) fn few_pids() -> SandboxSpec {
    limited(LimitsSpec {
        pids: Some(24),
        ..LimitsSpec::default()
    })
}

pub(super) fn small_workspace() -> SandboxSpec {
    limited(LimitsSpec {
        workspace: Some(Size(2 << 20)),
        ..LimitsSpec::default()
    })
}

pub(super) fn small_tmp() -> SandboxSpec {
    limited(LimitsSpec {
        tmp: Some(Size(1 << 20)),
        ..LimitsSpec::default()
    })
}

pub(super) async fn memory(s: &Subject) -> Outcome {
    s.shell("sleep 1000 >/dev/null 2>&1 &").await?;
    let bomb = "x = bytearray(300 << 20)";
    let done = s.exec(&["python3", "-c", bomb]).await?;
    same!(done.end.exit, Exit::Signal(9));
    let certificate = done
        .end
        .certificate
        .ok_or_else(|| Wrong("no certificate".into()))?;
    same!(certificate.cause, Cause::Memory);
    same!(certificate.limit.as_deref(), Some("64 MiB"));
    // It died alone.
    same!(
        s.shell("cat /proc/[0-9]*/comm | grep -cx sleep")
            .await?
            .stdout
            .data
            .text()
            .trim(),
        "1"
    );
    // The REPL dies of it too, says so, and comes back.
    let done = s.python(bomb).await?;
    same!(done.end.certificate.map(|c| c.cause), Some(Cause::Memory));
    same!(
        s.python("print('back')").await?.stdout.data.text(),
        "back\n"
    );
    Ok(())
}

pub(super) async fn pids(s: &Subject) -> Outcome {
    let bomb = "import os, signal\nchildren = []\ntry:\n    while len(children) < 200:\n        \
                pid = os.fork()\n        if pid == 0:\n            signal.pause()\n        \
                children.append(pid)\nexcept OSError as e:\n    print('stopped', len(children), e.errno)\n\
                for pid in children: os.kill(pid, 9)";
    let done = s.exec(&["python3", "-c", bomb]).await?;
    let text = done.stdout.data.text().into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    same!(
        (words.first(), words.get(2)),
        (Some(&"stopped"), Some(&"11"))
    );
    holds!(words[1].parse::<u32>().is_ok_and(|n| n < 24), text);
    same!(s.exec(&["true"]).await?.end.exit, Exit::Code(0));
    Ok(())
}

pub(super) async fn workspace(s: &Subject) -> Outcome {
    let done = s
        .shell("head -c 4000000 /dev/zero > big; echo $?; rm big; echo fits > small")
        .await?;
    holds!(
        done.stderr.data.text().contains("No space left"),
        done.stderr.data.text()
    );
    same!(done.stdout.data.text(), "1\n");
    let much = vec![0u8; 4_000_000];
    let query = ringfence_core::proto::WriteQuery::new("big");
    let failure: Option<Failure> = s.guest.write(&query, much).await.err();
    same!(failure.map(|f| f.code), Some(ringfence_core::Code::NoSpace));
    same!(
        s.shell("ls; cat small").await?.stdout.data.text(),
        "small\nfits\n"
    );
    Ok(())
}

pub(super) async fn tmp(s: &Subject) -> Outcome {
    let done = s.shell("head -c 2000000 /dev/zero > /tmp/big").await?;
    holds!(
        done.stderr.data.text().contains("No space left"),
        done.stderr.data.text()
    );
    Ok(())
}
