//! For a process of our own that reads hostile text and needs nothing but its three descriptors.

use crate::seccomp::{Rule, assemble, rules};
use crate::sys;
use std::io;

/// What it takes to read a question, compute, and write an answer.
const CALLS: [&str; 17] = [
    "read",
    "write",
    "close",
    "mmap",
    "mprotect",
    "munmap",
    "mremap",
    "brk",
    "madvise",
    "futex",
    "getrandom",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "exit",
    "exit_group",
];

/// Takes from this process, for ever, every system call but those: it can open, connect to and
/// start nothing.
pub fn confine() -> io::Result<()> {
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    let needed: Vec<Rule> = rules()
        .iter()
        .filter(|rule| CALLS.contains(&rule.call))
        .copied()
        .collect();
    sys::install_filter(&assemble(&needed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::Action;

    #[test]
    fn every_call_is_one_of_the_policy_and_is_allowed() {
        for call in CALLS {
            let rule = rules().iter().find(|rule| rule.call == call);
            // But for flags that it has no use for.
            let allowed = rule.is_some_and(|rule| match rule.action {
                Action::Allow => true,
                Action::Check { allow_if_true, .. } => !allow_if_true,
                Action::Errno(_) => false,
            });
            assert!(allowed, "{call}");
        }
    }
}
