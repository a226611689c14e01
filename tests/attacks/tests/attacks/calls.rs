//! System calls that reach the kernel's large or dangerous parts. Outside each is made with
//! arguments that do nothing, so that root gets a success or an error about the arguments; inside
//! the error is the filter's.

use ringfence_tests::{Place, Verdict, attacks};

attacks! {
    fn denied_calls(host) {
        let probe = r#"
BAD = -1
rows = {
    # mounts and roots
    "mount": (BAD, BAD, BAD, 0, 0), "umount2": (BAD, 0), "pivot_root": (BAD, BAD),
    "chroot": (BAD,), "setns": (BAD, 0), "open_tree": (-100, b"/usr", 1),
    "move_mount": (BAD, BAD, BAD, BAD, 0), "fsopen": (b"tmpfs", 0), "fsconfig": (BAD, 0, 0, 0, 0),
    "fsmount": (BAD, 0, 0), "fspick": (-100, b"/", 0), "mount_setattr": (BAD, BAD, 0, BAD, 0),
    "open_by_handle_at": (BAD, BAD, 0), "name_to_handle_at": (BAD, BAD, BAD, BAD, 0),
    "quotactl": (BAD, 0, 0, 0), "quotactl_fd": (BAD, 0, 0, 0), "swapon": (BAD, 0), "swapoff": (BAD,),
    # the machine
    "init_module": (BAD, 1, BAD), "finit_module": (BAD, BAD, 0), "delete_module": (BAD, 0),
    "kexec_load": (0, 0, 0, 0xff), "kexec_file_load": (BAD, BAD, 0, 0, 0xff),
    "reboot": (0, 0, 0, 0), "settimeofday": (BAD, 0), "clock_settime": (0, BAD),
    "adjtimex": (BAD,), "clock_adjtime": (0, BAD), "sethostname": (BAD, 1), "setdomainname": (BAD, 1),
    # large parts
    "keyctl": (999, 0, 0, 0, 0), "add_key": (BAD, BAD, 0, 0, 0), "request_key": (BAD, BAD, 0, 0),
    "bpf": (999, 0, 0), "perf_event_open": (BAD, 0, BAD, BAD, 0), "userfaultfd": (0,),
    "io_uring_setup": (1, BAD), "io_uring_enter": (BAD, 0, 0, 0, 0, 0),
    "io_uring_register": (BAD, 0, 0, 0), "fanotify_init": (0, 0), "fanotify_mark": (BAD, 0, 0, 0, 0),
    "acct": (BAD,), "syslog": (10, 0, 0), "move_pages": (0, 0, 0, 0, 0, 0),
    "migrate_pages": (0, BAD, BAD, BAD), "lookup_dcookie": (0, BAD, 0),
    # others
    "ptrace": (999, 0, 0, 0), "process_vm_readv": (os.getpid(), 0, 0, 0, 0, 0),
    "process_vm_writev": (os.getpid(), 0, 0, 0, 0, 0), "kcmp": (os.getpid(), os.getpid(), 0, 0, 0),
    "pidfd_getfd": (BAD, 0, 0), "personality": (0x0040000,),
}
if X86:
    rows.update({"iopl": (0,), "ioperm": (0, 1, 0), "modify_ldt": (0, 0, 0)})
judge_all(**{name: (lambda n=name, a=args: call(n, *a)) for name, args in rows.items()})
"#;
        let control = host.outside(probe, &[]);
        assert!(control.rows.len() > 45, "{}", control.whole);
        host.inside(&[], probe, &[]).denied_unlike(&control, "EPERM");
    }

    /// As on an older kernel, so that libraries take another way.
    fn unknown_calls(host) {
        let probe = r#"
rows = {"clone3": (0, 0), "openat2": (-100, b"/", 0, 0), "io_setup": (0, 0)}
judge_all(**{name: (lambda n=name, a=args: call(n, *a)) for name, args in rows.items()})
"#;
        let control = host.outside(probe, &[]);
        host.inside(&[], probe, &[]).denied_unlike(&control, "ENOSYS");
    }

    /// Families and protocols of sockets, by both doors.
    fn sockets(host) {
        let probe = r#"
rows = {"packet": (17, 3, 0), "vsock": (40, 1, 0), "alg": (38, 5, 0), "xdp": (44, 3, 0),
        "tipc": (30, 1, 0), "raw": (2, 3, 1), "raw6": (10, 3, 58), "sctp": (2, 1, 132),
        "mptcp": (2, 1, 262), "can": (29, 3, 1), "bluetooth": (31, 3, 1), "rds": (21, 5, 0),
        "audit": (16, 3, 9), "uevent": (16, 3, 15), "netfilter": (16, 3, 12), "diag": (16, 3, 4),
        "generic": (16, 3, 16), "xfrm": (16, 3, 6), "connector": (16, 3, 11)}
tried = {n: (lambda a=a: os.close(call("socket", *a))) for n, a in rows.items()}
def pair(family):
    call("socketpair", family, 1, 0, (ctypes.c_int * 2)())
tried.update({"pair_%d" % f: (lambda f=f: pair(f)) for f in (2, 16, 30, 38, 40)})
judge_all(**tried)
"#;
        let needed = r#"
rows = {"unix": (1, 1, 0), "tcp": (2, 1, 0), "udp6": (10, 2, 17), "route": (16, 3, 0)}
judge_all(**{n: (lambda a=a: os.close(call("socket", *a))) for n, a in rows.items()})
"#;
        let mut control = host.outside(probe, &[]);
        let inside = host.inside(&[], probe, &[]);
        let needed_inside = host.inside(&[], needed, &[]);
        if host.place == Place::Kubernetes {
            // A pod has no sockets but unix ones, and the error is one that a host has too.
            control.rows.retain(|_, row| matches!(row, Verdict::Reached(_)));
            inside.all_denied(control.all_reached(), &["EPERM", "EAFNOSUPPORT"]);
            let mut others = host.outside(needed, &[]);
            others.rows.remove("unix");
            needed_inside.all_denied(others.all_reached(), &["EAFNOSUPPORT"]);
            assert!(matches!(needed_inside.rows["unix"], Verdict::Reached(_)));
        } else {
            inside.denied_unlike(&control, "EPERM");
            // Those that programs need are there.
            needed_inside.all_reached();
        }
    }

    fn mounts(host) {
        let probe = r#"
judge_all(
    fresh=lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, 0),
    bound=lambda: call("mount", b"/usr", b"/tmp", 0, 4096, 0),
    writable=lambda: call("mount", 0, b"/tmp", 0, 32 | 4096, 0),
    gone=lambda: call("umount2", b"/tmp", 2),
)
"#;
        let control = host.outside_by(&["unshare", "-m"], probe, &[]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EPERM"]);
    }

    /// The table of system calls of another architecture has other numbers.
    fn foreign_architecture(host) {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let probe = r#"
import mmap
def old():
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # push rbx; mov eax, 20; int 0x80
    pid = os.fork()
    if pid == 0:
        at = ctypes.addressof(ctypes.c_char.from_buffer(code))
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(at)() == os.getpid() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise Denied("STATUS%d" % status)
judge(old)
"#;
        // A kernel without 32-bit programs ends it by another signal.
        let control = host.outside(probe, &[]);
        let inside = host.inside(&[], probe, &[]);
        inside.denied(&["STATUS-31"]);
        assert_ne!(control.verdict, inside.verdict, "{}", control.whole);
    }
}
