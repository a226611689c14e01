//! The system call filter, assembled from policy/seccomp.toml as a binary search over ranges.
//!
//! The kernel evaluates a filter once per system call number when it is installed and remembers
//! constant answers, so a short path per number is what makes starting a sandbox fast.

use crate::sys;
use libc::sock_filter;
use std::io;

/// What the filter does with one system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Errno(i32),
    /// Looks at arguments: true if all conditions of any clause hold. The way that is not allowed
    /// answers EPERM.
    Check {
        clauses: &'static [&'static [Condition]],
        allow_if_true: bool,
    },
}

/// A test of the low 32 bits of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    pub argument: u8,
    pub test: Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    AnyOf(&'static [u32]),
    AnyBitOf(u32),
}

/// One row of the policy.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub call: &'static str,
    pub number: u32,
    pub action: Action,
    pub why: &'static str,
}

/// The whole policy of this architecture, in the order of the file.
pub fn rules() -> &'static [Rule] {
    include!(concat!(env!("OUT_DIR"), "/policy.rs"))
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

const DEFAULT: Action = Action::Errno(libc::ENOSYS);

fn op(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn answer(action: Action) -> u32 {
    match action {
        Action::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
        Action::Allow | Action::Check { .. } => libc::SECCOMP_RET_ALLOW,
    }
}

/// The filter for these rules: another architecture dies, an unknown number gets the default.
pub(crate) fn assemble(rules: &[Rule]) -> Vec<sock_filter> {
    let mut sorted: Vec<(u32, Action)> = rules.iter().map(|r| (r.number, r.action)).collect();
    sorted.sort_by_key(|(number, _)| *number);
    // Starts of ranges with one action each, from 0 to the largest number there can be.
    let mut ranges: Vec<(u32, Action)> = vec![(0, DEFAULT)];
    for (number, action) in sorted {
        push(&mut ranges, number, action);
        push(&mut ranges, number + 1, DEFAULT);
    }
    let mut program = vec![
        op(LOAD, 0, 0, 4),
        op(IF_EQUAL, 1, 0, ARCHITECTURE),
        op(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        op(LOAD, 0, 0, 0),
    ];
    search(&ranges, &mut program);
    program
}

/// Starts a new range, or changes the one that starts at the same number, and merges equal ones.
fn push(ranges: &mut Vec<(u32, Action)>, start: u32, action: Action) {
    if ranges.last().is_some_and(|(last, _)| *last == start) {
        ranges.pop();
    }
    if ranges.last().is_none_or(|(_, last)| *last != action) {
        ranges.push((start, action));
    }
}

fn search(ranges: &[(u32, Action)], program: &mut Vec<sock_filter>) {
    if let [(_, action)] = ranges {
        return leaf(*action, program);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    program.push(op(IF_AT_LEAST, 0, 1, high[0].0));
    let jump = program.len();
    program.push(op(JUMP, 0, 0, 0));
    search(low, program);
    program[jump].k = (program.len() - jump - 1) as u32;
    search(high, program);
}

fn leaf(action: Action, program: &mut Vec<sock_filter>) {
    let Action::Check {
        clauses,
        allow_if_true,
    } = action
    else {
        program.push(op(RETURN, 0, 0, answer(action)));
        return;
    };
    let denied = Action::Errno(libc::EPERM);
    let (if_true, if_false) = if allow_if_true {
        (Action::Allow, denied)
    } else {
        (denied, Action::Allow)
    };
    for clause in clauses {
        let mut to_next_clause = Vec::new();
        for condition in *clause {
            // seccomp_data: number, architecture, instruction pointer, then six 64-bit arguments.
            program.push(op(LOAD, 0, 0, 16 + 8 * u32::from(condition.argument)));
            let (code, values): (u16, &[u32]) = match &condition.test {
                Test::AnyOf(values) => (IF_EQUAL, values),
                Test::AnyBitOf(mask) => (IF_ANY_BIT, std::slice::from_ref(mask)),
            };
            for (index, value) in values.iter().enumerate() {
                program.push(op(code, (values.len() - index) as u8, 0, *value));
            }
            to_next_clause.push(program.len());
            program.push(op(JUMP, 0, 0, 0));
        }
        program.push(op(RETURN, 0, 0, answer(if_true)));
        for jump in to_next_clause {
            program[jump].k = (program.len() - jump - 1) as u32;
        }
    }
    program.push(op(RETURN, 0, 0, answer(if_false)));
}

pub(crate) fn install() -> io::Result<()> {
    sys::install_filter(&assemble(rules()))
}

/// Installs the filter in this process and all that it will start, where an engine has made the
/// sandbox around it. Nothing takes it away again.
pub fn filter() -> io::Result<()> {
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    install()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel would.
    fn run(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let mut a = 0u32;
        let mut pc = 0usize;
        loop {
            let i = program[pc];
            pc += 1;
            let mut branch = |taken: bool| pc += usize::from(if taken { i.jt } else { i.jf });
            match i.code {
                LOAD => {
                    a = match i.k {
                        0 => number,
                        4 => arch,
                        k => args[(k as usize - 16) / 8] as u32,
                    }
                }
                JUMP => pc += i.k as usize,
                IF_EQUAL => branch(a == i.k),
                IF_AT_LEAST => branch(a >= i.k),
                IF_ANY_BIT => branch(a & i.k != 0),
                RETURN => return i.k,
                other => panic!("unknown instruction {other}"),
            }
        }
    }

    #[test]
    fn every_number_gets_the_answer_of_the_policy() {
        let program = assemble(rules());
        for number in 0..1000 {
            let rule = rules().iter().find(|r| r.number == number);
            let want = match rule.map_or(DEFAULT, |r| r.action) {
                Action::Check { .. } => continue,
                action => answer(action),
            };
            assert_eq!(
                run(&program, ARCHITECTURE, number, [0; 6]),
                want,
                "{number}"
            );
        }
    }

    #[test]
    fn foreign_architectures_die_and_x32_is_unknown() {
        let program = assemble(rules());
        assert_eq!(
            run(&program, 0x4000_0003, 1, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
        let unknown = answer(DEFAULT);
        assert_eq!(run(&program, ARCHITECTURE, 0x4000_0000, [0; 6]), unknown);
        assert_eq!(run(&program, ARCHITECTURE, u32::MAX, [0; 6]), unknown);
    }

    #[test]
    fn arguments_are_looked_at() {
        let program = assemble(rules());
        let call = |name: &str, args: [u64; 6]| {
            let rule = rules().iter().find(|r| r.call == name).unwrap();
            run(&program, ARCHITECTURE, rule.number, args) == libc::SECCOMP_RET_ALLOW
        };
        assert!(call("clone", [0x0120_0011, 0, 0, 0, 0, 0]));
        for namespace in [
            0x80,
            0x20000,
            0x200_0000,
            0x400_0000,
            0x800_0000,
            0x1000_0000,
        ] {
            assert!(!call("clone", [namespace, 0, 0, 0, 0, 0]), "{namespace:x}");
            assert!(
                !call("unshare", [namespace, 0, 0, 0, 0, 0]),
                "{namespace:x}"
            );
        }
        assert!(!call("unshare", [0x2000_0000, 0, 0, 0, 0, 0]));
        assert!(!call("unshare", [0x4000_0000, 0, 0, 0, 0, 0]));
        for (family, protocol, allowed) in [
            (1, 0, true),
            (2, 0, true),
            (2, 6, true),
            (10, 17, true),
            (10, 58, true),
            (2, 132, false),
            (10, 262, false),
            (16, 0, true),
            (16, 15, false),
            (40, 0, false),
            (38, 0, false),
            (17, 0, false),
        ] {
            let made = call("socket", [family, 1, protocol, 0, 0, 0]);
            assert_eq!(made, allowed, "{family} {protocol}");
        }
        assert!(call("socketpair", [1, 1, 0, 0, 0, 0]));
        assert!(!call("socketpair", [40, 1, 0, 0, 0, 0]));
        assert!(call("fchmod", [3, 0o1755, 0, 0, 0, 0]));
        assert!(!call("fchmod", [3, 0o4755, 0, 0, 0, 0]));
        assert!(!call("fchmodat", [3, 0, 0o2755, 0, 0, 0]));
        assert!(!call("mknodat", [3, 0, 0o10_4755, 0, 0, 0]));
        let (create, unnamed) = (0o100, 0o2020_0000);
        assert!(call("openat", [3, 0, create, 0o755, 0, 0]));
        assert!(!call("openat", [3, 0, create, 0o4755, 0, 0]));
        assert!(!call("openat", [3, 0, unnamed, 0o2755, 0, 0]));
        // Without a file to make, the mode is whatever was left in the register.
        assert!(call("openat", [3, 0, 0, 0o4755, 0, 0]));
        // Private and anonymous; the same of huge pages.
        assert!(call("mmap", [0, 4096, 3, 0x22, u64::MAX, 0]));
        assert!(!call("mmap", [0, 2 << 20, 3, 0x4_0022, u64::MAX, 0]));
        assert!(call("memfd_create", [0, 3, 0, 0, 0, 0]));
        assert!(!call("memfd_create", [0, 4, 0, 0, 0, 0]));
        assert!(call("shmget", [0, 4096, 0o1600, 0, 0, 0]));
        assert!(!call("shmget", [0, 2 << 20, 0o5600, 0, 0, 0]));
        assert!(call("prlimit64", [0, 7, 0, 0, 0, 0]));
        assert!(!call("prlimit64", [1, 7, 0, 0, 0, 0]));
        assert!(call("setpriority", [0, 0, 19, 0, 0, 0]));
        assert!(!call("setpriority", [0, 1, 19, 0, 0, 0]));
        assert!(!call("sched_setscheduler", [1, 5, 0, 0, 0, 0]));
        assert!(!call("ioctl", [0, 0x5412, 0, 0, 0, 0]));
        // Only the low half of a request counts for the kernel, and so for the filter.
        assert!(!call("ioctl", [0, 0x1_0000_5412, 0, 0, 0, 0]));
        assert!(call("ioctl", [0, 0x5401, 0, 0, 0, 0]));
    }

    #[test]
    fn no_call_is_named_twice() {
        let mut names: Vec<_> = rules().iter().map(|r| r.call).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }

    #[test]
    fn jumps_stay_inside() {
        assert!(assemble(rules()).len() < 1000);
    }
}
