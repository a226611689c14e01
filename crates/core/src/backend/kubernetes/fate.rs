//! What a pod's status means: that it runs, that it can't, or why it ended.

use super::CONTAINER;
use super::cluster::first_line;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodStatus};
use ringfence_proto::{Cause, Certificate, Code, Ended, Failure};

/// How far a pod is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fate {
    /// It is being made.
    Coming,
    /// No node takes it now; one may, later.
    Unschedulable(String),
    /// It will not come about.
    Refused(Failure),
    Running,
    /// It ran, or at least was to, and is over.
    Ended(Box<Certificate>),
}

/// Reasons of a waiting container that do not pass by themselves.
const HOPELESS: [&str; 8] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
];

pub(super) const NO_GUEST: &str =
    "the image has no guest: the setting `kubernetes.guest_image` names one that brings it";
const AGAIN: &str = "create the session again";

/// The exit code of what was killed by SIGKILL.
const KILLED: i32 = 137;

pub(super) fn fate(pod: &Pod) -> Fate {
    if pod.metadata.deletion_timestamp.is_some() {
        return Fate::Ended(Box::new(deleted(pod)));
    }
    let Some(status) = &pod.status else {
        return Fate::Coming;
    };
    let phase = status.phase.as_deref().unwrap_or_default();
    if matches!(phase, "Failed" | "Succeeded" | "Unknown") {
        return Fate::Ended(Box::new(ended(pod, status)));
    }
    if let Some(refused) = refused(status) {
        return Fate::Refused(refused);
    }
    let state = own(status).and_then(|own| own.state.as_ref());
    match state {
        Some(state) if state.running.is_some() => Fate::Running,
        Some(state) if state.terminated.is_some() => Fate::Ended(Box::new(ended(pod, status))),
        _ => match unschedulable(status) {
            Some(why) => Fate::Unschedulable(why),
            None => Fate::Coming,
        },
    }
}

/// The container that is the sandbox.
fn own(status: &PodStatus) -> Option<&ContainerStatus> {
    let all = status.container_statuses.iter().flatten();
    all.into_iter().find(|one| one.name == CONTAINER)
}

fn unschedulable(status: &PodStatus) -> Option<String> {
    match condition(status, "PodScheduled", "False")? {
        (Some("Unschedulable"), said) => Some(said.to_owned()),
        _ => None,
    }
}

fn refused(status: &PodStatus) -> Option<Failure> {
    let init = status.init_container_statuses.iter().flatten();
    let all = init.chain(status.container_statuses.iter().flatten());
    let (image, waiting) = all
        .filter_map(|one| Some((&one.image, one.state.as_ref()?.waiting.as_ref()?)))
        .find(|(_, waiting)| {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            HOPELESS.contains(&reason)
        })?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let said = first_line(waiting.message.as_deref().unwrap_or_default());
    let about_image = reason.contains("Image");
    let message = match about_image {
        true => format!("cannot fetch the image {image}: {reason}: {said}"),
        false => format!("cannot start a container of {image}: {reason}: {said}"),
    };
    let failure = match about_image {
        true => Failure::new(Code::NotFound, message)
            .hint("check its name; a private registry needs an image pull secret"),
        false => Failure::new(Code::Unavailable, message),
    };
    Some(match said.contains(super::GUEST_IN_IMAGE) {
        true => failure.hint(NO_GUEST),
        false => failure,
    })
}

/// Why a pod is over, in the cluster's own words.
fn ended(pod: &Pod, status: &PodStatus) -> Certificate {
    let said = first_line(status.message.as_deref().unwrap_or_default()).to_owned();
    if let Some(reason) = &status.reason {
        let text = said.to_lowercase();
        let cause = match reason.as_str() {
            "DeadlineExceeded" => Cause::WallClock,
            "Evicted" if text.contains("memory") => Cause::Memory,
            "Evicted"
                if ["ephemeral", "disk", "emptydir", "storage", "inodes"]
                    .iter()
                    .any(|word| text.contains(word)) =>
            {
                Cause::Disk
            }
            _ => Cause::BackendLost,
        };
        return certificate(cause, reason, &said);
    }
    let terminated = own(status).and_then(|own| {
        let last = own.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        own.state
            .as_ref()
            .and_then(|s| s.terminated.as_ref())
            .or(last)
    });
    let Some(terminated) = terminated else {
        let phase = status.phase.as_deref().unwrap_or("?");
        let said = unprepared(status).unwrap_or(said);
        return certificate(Cause::BackendLost, phase, &said);
    };
    let reason = terminated.reason.as_deref().unwrap_or("Error");
    let code = terminated.exit_code;
    let words = first_line(terminated.message.as_deref().unwrap_or_default());
    let mut certificate = match reason {
        // Runtimes say so too of one that ended in another way, after a process of it was killed.
        "OOMKilled" if code == KILLED => {
            let mut certificate = certificate(Cause::Memory, reason, words);
            certificate.limit = memory_limit(pod);
            certificate.next = "ask for more memory, or use less".to_owned();
            certificate
        }
        _ if code == 0 => certificate(Cause::Exited, reason, words),
        _ => certificate(
            Cause::Killed,
            reason,
            &format!("exit status {code} {words}"),
        ),
    };
    certificate.signal = terminated.signal.or((code > 128).then_some(code - 128));
    certificate
}

/// What a container that was to run before the sandbox ended with.
fn unprepared(status: &PodStatus) -> Option<String> {
    let all = status.init_container_statuses.iter().flatten();
    let mut ended = all.filter_map(|one| Some((one, one.state.as_ref()?.terminated.as_ref()?)));
    let (one, terminated) = ended.find(|(_, terminated)| terminated.exit_code != 0)?;
    let reason = terminated.reason.as_deref().unwrap_or("Error");
    let words = first_line(terminated.message.as_deref().unwrap_or_default());
    let (name, image, code) = (&one.name, &one.image, terminated.exit_code);
    Some(format!(
        "the init container `{name}` of {image}: {reason}: exit status {code} {words}"
    ))
}

/// What keeps a pod from starting, as the last event about it says: a warning after which nothing
/// went on.
pub(super) fn hindrance(events: &[Event]) -> Option<(&str, &str)> {
    let when = |event: &Event| {
        let last = event.last_timestamp.as_ref().map(|at| at.0);
        last.or(event.event_time.as_ref().map(|at| at.0))
    };
    let is_warning = |event: &Event| event.type_.as_deref() == Some("Warning");
    let last = events
        .iter()
        // That a node was found says nothing of what comes next.
        .filter(|event| event.reason.as_deref() != Some("Scheduled"))
        .max_by_key(|event| (when(event), !is_warning(event)))?;
    let reason = last.reason.as_deref().unwrap_or("Warning");
    let said = first_line(last.message.as_deref().unwrap_or_default());
    is_warning(last).then_some((reason, said))
}

fn memory_limit(pod: &Pod) -> Option<String> {
    let containers = &pod.spec.as_ref()?.containers;
    let own = containers.iter().find(|one| one.name == CONTAINER)?;
    let limits = own.resources.as_ref()?.limits.as_ref()?;
    let bytes = limits.get("memory")?.0.parse().ok()?;
    Some(crate::size::Size(bytes).to_string())
}

/// Somebody else than us removes, or removed, a pod.
pub(super) fn deleted(pod: &Pod) -> Certificate {
    let lost = |reason: &str, said: &str| certificate(Cause::BackendLost, reason, said);
    let status = pod.status.as_ref();
    if let Some(status) = status.filter(|status| status.reason.is_some()) {
        return ended(pod, status);
    }
    // Newer clusters say who had it deleted: an eviction, a preemption, a node that is lost.
    let disrupted = status.and_then(|status| condition(status, "DisruptionTarget", "True"));
    if let Some((reason, said)) = disrupted {
        return lost(reason.unwrap_or("Disrupted"), said);
    }
    match status.and_then(unready) {
        Some((reason, said)) => lost(reason, said),
        None => lost("Deleted", "somebody else deleted it"),
    }
}

/// Nothing looks whether a sandbox is ready, so that one that runs is not means that its node does
/// not answer.
fn unready(status: &PodStatus) -> Option<(&str, &str)> {
    own(status)?.state.as_ref()?.running.as_ref()?;
    let (reason, said) = condition(status, "Ready", "False")?;
    let said = if said.is_empty() {
        "its node does not answer"
    } else {
        said
    };
    Some((reason.unwrap_or("NodeNotReady"), said))
}

/// Reason and message of a condition that has this status.
fn condition<'a>(
    status: &'a PodStatus,
    kind: &str,
    value: &str,
) -> Option<(Option<&'a str>, &'a str)> {
    let mut all = status.conditions.iter().flatten();
    let found = all.find(|one| one.type_ == kind && one.status == value)?;
    let said = first_line(found.message.as_deref().unwrap_or_default());
    Some((found.reason.as_deref(), said))
}

fn certificate(cause: Cause, reason: &str, said: &str) -> Certificate {
    let said = said.trim();
    let message = match said.is_empty() {
        true => format!("the cluster ended the sandbox's pod: {reason}"),
        false => format!("the cluster ended the sandbox's pod: {reason}: {said}"),
    };
    let mut certificate = Certificate::new(cause, Ended::Sandbox, message, false, AGAIN);
    certificate.survived.files = false;
    certificate
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(status: Value) -> Fate {
        let pod = json!({"metadata": {"name": "p"}, "status": status});
        fate(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn every_end_has_the_clusters_own_reason() {
        for (status, cause, word) in [
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
                Cause::Memory,
                "Evicted",
            ),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "Usage of EmptyDir volume \"tmp\" exceeds the limit"}),
                Cause::Disk,
                "EmptyDir",
            ),
            (
                json!({"phase": "Failed", "reason": "DeadlineExceeded"}),
                Cause::WallClock,
                "DeadlineExceeded",
            ),
            (
                json!({"phase": "Unknown", "reason": "NodeLost", "message": "Node n is unresponsive"}),
                Cause::BackendLost,
                "NodeLost",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [{"name": "sandbox", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}),
                Cause::Memory,
                "OOMKilled",
            ),
            (
                json!({"phase": "Running", "containerStatuses": [{"name": "sandbox", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]}),
                Cause::Killed,
                "137",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [{"name": "sandbox", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}}}]}),
                Cause::Killed,
                "exit status 1",
            ),
            (
                json!({"phase": "Succeeded", "containerStatuses": [{"name": "sandbox", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "OOMKilled"}}}]}),
                Cause::Exited,
                "OOMKilled",
            ),
            (
                json!({"phase": "Failed", "initContainerStatuses": [{"name": "guest", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}}}]}),
                Cause::BackendLost,
                "init container `guest` of i: StartError: exit status 128 no such file",
            ),
        ] {
            match of(status.clone()) {
                Fate::Ended(certificate) => {
                    assert_eq!(certificate.cause, cause, "{status}");
                    assert!(certificate.message.contains(word), "{certificate}");
                    assert!(!certificate.survived.files);
                }
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn who_had_a_pod_deleted_is_told() {
        let running = json!([{"name": "sandbox", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]);
        for (conditions, word) in [
            (
                json!([{"type": "Ready", "status": "True"}]),
                "somebody else",
            ),
            (
                json!([{"type": "Ready", "status": "False"}]),
                "NodeNotReady",
            ),
            (
                json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint manager: deleting"}]),
                "DeletionByTaintManager: Taint manager",
            ),
        ] {
            let pod = json!({
                "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"phase": "Running", "conditions": conditions, "containerStatuses": running},
            });
            match fate(&serde_json::from_value(pod).unwrap()) {
                Fate::Ended(certificate) => {
                    assert_eq!(certificate.cause, Cause::BackendLost);
                    assert!(certificate.message.contains(word), "{certificate}");
                }
                other => panic!("{word}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_will_not_come_about_is_refused_and_what_may_is_waited_for() {
        let waiting = |reason: &str| json!({"phase": "Pending", "containerStatuses": [{"name": "sandbox", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "words"}}}]});
        assert!(
            matches!(of(waiting("ImagePullBackOff")), Fate::Refused(f) if f.code == Code::NotFound)
        );
        assert!(
            matches!(of(waiting("RunContainerError")), Fate::Refused(f) if f.code == Code::Unavailable)
        );
        assert_eq!(of(waiting("ContainerCreating")), Fate::Coming);
        let status = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]});
        assert_eq!(of(status), Fate::Unschedulable("0/1 nodes".to_owned()));
    }

    #[test]
    fn a_warning_hinders_until_something_goes_on() {
        let event = |kind: &str, reason: &str, second: u32| {
            let at = format!("2026-01-01T00:00:{second:02}Z");
            json!({"metadata": {}, "involvedObject": {}, "type": kind, "reason": reason, "message": "words", "lastTimestamp": at})
        };
        let hindered = |events: Vec<Value>| {
            let events: Vec<Event> = serde_json::from_value(Value::Array(events)).unwrap();
            hindrance(&events).map(|(reason, said)| format!("{reason}: {said}"))
        };
        let (scheduled, mount) = (
            event("Normal", "Scheduled", 1),
            event("Warning", "FailedMount", 1),
        );
        let stuck = hindered(vec![scheduled.clone(), mount.clone()]);
        assert_eq!(stuck.as_deref(), Some("FailedMount: words"));
        let pulling = event("Normal", "Pulling", 1);
        assert_eq!(hindered(vec![pulling, mount.clone()]), None);
        let later = event("Normal", "Pulling", 2);
        assert_eq!(hindered(vec![mount, later]), None);
        assert_eq!(hindered(vec![scheduled]), None);
        assert_eq!(hindered(vec![]), None);
    }
}
