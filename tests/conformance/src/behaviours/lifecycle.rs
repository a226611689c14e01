use crate::{Outcome, Subject, Wrong, holds, same};
use ringfence_core::backend::SandboxState;
use ringfence_core::proto::{Command, ExecRequest, Stdin};
use ringfence_core::spec::{MountSpec, SandboxSpec, Workspace};
use ringfence_core::{Access, Code, GuestClient, Lifetime, SandboxId, resolve};

pub(super) fn labelled() -> SandboxSpec {
    let labels = [("who".to_owned(), "conformance".to_owned())].into();
    SandboxSpec {
        labels,
        workspace: Workspace::Memory,
        ..SandboxSpec::default()
    }
}

/// A folder of the host keeps files on every backend, for an ordinary user too.
pub(super) fn on_disk() -> SandboxSpec {
    let name = format!("ringfence-conformance-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    // The trial itself fails when there is no folder.
    let _ = std::fs::create_dir_all(&path);
    let workspace = Workspace::Folder {
        path,
        access: Access::ReadWrite,
    };
    SandboxSpec {
        workspace,
        ..SandboxSpec::default()
    }
}

/// Waits until the guest has been idle for so many milliseconds, by asking it again and again.
async fn idle_for(s: &Subject, ms: u64) -> Outcome {
    for _ in 0..1000 {
        if s.guest.health().await?.idle_ms >= ms {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Err(Wrong(format!("it is never idle for {ms} ms")))
}

pub(super) async fn says_how_long_it_is_idle(s: &Subject) -> Outcome {
    // Reading it changes nothing, or it would never be this long.
    idle_for(s, 100).await?;
    let before = s.guest.health().await?.idle_ms;
    s.exec(&["true"]).await?;
    holds!(s.guest.health().await?.idle_ms < before);
    // A job counts also when the request that started it is over, and a request that lasts.
    let mut request = ExecRequest::new(Command::Argv(vec!["cat".into()]));
    request.stdin = Stdin::Stream;
    let job = s.guest.start(&request).await?;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    same!(s.guest.health().await?.idle_ms, 0);
    let path = format!("/jobs/{}", job.id);
    s.guest.tell(http::Method::DELETE, &path, &()).await?;
    idle_for(s, 20).await?;
    let mut events = s
        .guest
        .exec_events(&ExecRequest::new(Command::Shell(
            "echo; cat /dev/zero".into(),
        )))
        .await?;
    holds!(futures_util::StreamExt::next(&mut events).await.is_some());
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    same!(s.guest.health().await?.idle_ms, 0);
    drop(events);
    idle_for(s, 20).await
}

pub(super) async fn two_connections_and_two_sandboxes(s: &Subject) -> Outcome {
    let again = GuestClient::connect(s.backend.dial(&s.plan.id).await?).await?;
    again.health().await?;
    let other = Subject::new(&s.backend, SandboxSpec::default(), Lifetime::Disposable).await?;
    s.shell("echo mine > file").await?;
    let seen = other.shell("cat file").await?;
    let id = other.plan.id.clone();
    drop(other);
    s.backend.destroy(&id).await?;
    holds!(seen.stdout.data.is_empty(), seen.stdout.data.text());
    same!(s.shell("cat file").await?.stdout.data.text(), "mine\n");
    Ok(())
}

pub(super) async fn unknown_sandboxes(s: &Subject) -> Outcome {
    let id = SandboxId::try_from("box-nobody".to_owned()).map_err(Wrong)?;
    s.backend.destroy(&id).await?;
    same!(
        s.backend.dial(&id).await.err().map(|f| f.code),
        Some(Code::NotFound)
    );
    same!(
        s.backend.suspend(&id).await.err().map(|f| f.code),
        Some(Code::NotFound)
    );
    // Making the same one again is refused, and harms nothing.
    same!(
        s.backend.create(&s.plan).await.err().map(|f| f.code),
        Some(Code::AlreadyExists)
    );
    same!(s.shell("echo alive").await?.stdout.data.text(), "alive\n");
    Ok(())
}

pub(super) async fn failed_creation_leaves_nothing(s: &Subject) -> Outcome {
    let mount = MountSpec {
        from: "/no/such/folder".into(),
        to: "/data".into(),
        access: Access::ReadOnly,
    };
    let spec = SandboxSpec {
        mounts: vec![mount],
        ..SandboxSpec::default()
    };
    let plan = resolve(spec, Lifetime::Kept, &s.backend.guarantees().await?)?;
    let failure = s
        .backend
        .create(&plan)
        .await
        .err()
        .ok_or_else(|| Wrong("made".into()))?;
    same!(failure.code, Code::NotFound);
    holds!(failure.message.contains("/no/such/folder"), failure.message);
    let left = s.backend.list().await?;
    same!(left.iter().filter(|i| *i.id() == plan.id).count(), 0);
    Ok(())
}

pub(super) async fn is_listed_with_its_labels(s: &Subject) -> Outcome {
    let all = s.backend.list().await?;
    let own = all.iter().find(|i| *i.id() == s.plan.id);
    let own = own.ok_or_else(|| Wrong("not listed".into()))?;
    same!(own.state, SandboxState::Running);
    same!(
        own.plan.labels.get("who").map(String::as_str),
        Some("conformance")
    );
    Ok(())
}

pub(super) async fn suspend_keeps_files(s: &Subject) -> Outcome {
    s.shell("echo kept > file; sleep 1000 & echo").await?;
    s.backend.suspend(&s.plan.id).await?;
    let all = s.backend.list().await?;
    let state = all.iter().find(|i| *i.id() == s.plan.id).map(|i| i.state);
    same!(state, Some(SandboxState::Suspended));
    holds!(s.backend.dial(&s.plan.id).await.is_err());
    let again = resumed(s).await?;
    same!(again.shell("cat file").await?.stdout.data.text(), "kept\n");
    if let Workspace::Folder { path, .. } = &s.plan.workspace {
        let _ = std::fs::remove_dir_all(path);
    }
    Ok(())
}

pub(super) async fn failed_resume_keeps_files(s: &Subject) -> Outcome {
    s.shell("echo kept > file").await?;
    s.backend.suspend(&s.plan.id).await?;
    let mut broken = s.plan.clone();
    broken.mounts.push(MountSpec {
        from: "/no/such/folder".into(),
        to: "/data".into(),
        access: Access::ReadOnly,
    });
    let failure = s.backend.create(&broken).await.err();
    same!(failure.map(|f| f.code), Some(Code::NotFound));
    let all = s.backend.list().await?;
    let state = all.iter().find(|i| *i.id() == s.plan.id).map(|i| i.state);
    same!(state, Some(SandboxState::Suspended));
    let again = resumed(s).await?;
    same!(
        again.shell("cat file; rm file").await?.stdout.data.text(),
        "kept\n"
    );
    Ok(())
}

/// The same sandbox, running again.
async fn resumed(s: &Subject) -> Result<Subject, Wrong> {
    s.backend.create(&s.plan).await?;
    let guest = GuestClient::connect(s.backend.dial(&s.plan.id).await?).await?;
    Ok(Subject {
        backend: s.backend.clone(),
        plan: s.plan.clone(),
        guest,
    })
}
