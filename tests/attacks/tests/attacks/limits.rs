//! Using up what others need too. Bounded in count and time, also where nothing holds it.

use ringfence_tests::{Place, attacks, script};

/// A file of 32 MiB, in three folders.
const FILL: &str = r#"
def fill(folder):
    path = folder + "/big"
    try:
        with open(path, "wb") as f:
            for _ in range(32):
                f.write(bytes(1 << 20))
    finally:
        os.unlink(path)
judge_all(**{k: (lambda f=f: fill(f)) for k, f in zip(("workspace", "tmp", "shm"), ARGS)})
"#;

attacks! {
    /// Terminals count against one number for the whole machine.
    fn terminals(host) native_only "an engine mounts terminals without a maximum" {
        let probe = r#"
def many():
    held = [os.openpty() for _ in range(100)]
    return len(held)
judge(many)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&[], probe, &[]).denied(&["ENOSPC"]);
    }

    /// What watches files counts against one number for the user, for root as for anybody.
    fn watchers(host) native_only "an engine gives containers no numbers of their own" {
        let probe = r#"
def many():
    held = [call("inotify_init1", 0) for _ in range(24)]
    return len(held)
judge(many)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&[], probe, &[]).denied(&["EMFILE"]);
        // What programs need is there.
        host.inside(&[], &probe.replace("24", "12"), &[]).reached();
    }

    /// No limit of memory counts huge pages. A machine may have none, so outside the error is another.
    fn huge_pages(host) {
        let probe = r#"
SIZE = 2 << 20
libc.mmap.restype = ctypes.c_void_p
def mapped():
    at = libc.mmap(None, ctypes.c_size_t(SIZE), 3, 0x40022, -1, ctypes.c_long(0))
    if at == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(SIZE))
def shared():
    held = call("shmget", 0, SIZE, 0o5600)
    call("shmctl", held, 0, 0)
judge_all(mapped=mapped, file=lambda: os.close(call("memfd_create", b"x", 4)), shared=shared)
"#;
        let control = host.outside(probe, &[]);
        host.inside(&[], probe, &[]).denied_unlike(&control, "EPERM");
    }

    fn fork_bomb(host) not_on_pods "the number of processes is the kubelet's; `kubernetes::pods` tries it" {
        let probe = r#"
def bomb():
    children = []
    try:
        for _ in range(150):
            pid = os.fork()
            if pid == 0:
                time.sleep(100)
                os._exit(0)
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    return len(children)
judge(bomb)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&["--pids", "64"], probe, &[]).denied(&["EAGAIN"]);
        host.inside(&["--pids", "256"], probe, &[]).reached();
    }

    /// One that takes all the memory it may have ends, and the sandbox beside it does not.
    fn memory_bomb(host) {
        let bomb = r#"
def bomb():
    try:
        held = bytearray(400 << 20)
    except MemoryError:
        raise Denied("MEMORY")
    return len(held)
judge(bomb)
"#;
        let mut beside = host.sandbox(&[], "print('ready', flush=True); input(); print('alive')", &[]);
        beside.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut beside = ringfence_tests::Running::start(&mut beside);
        beside.wait_for_line("ready");
        host.outside(bomb, &[]).reached();
        let options = ["--memory", "128m", "--prefer"];
        let output = host.run(&options, &script(bomb), &[]);
        let answer = ringfence_tests::Answer::of(&output);
        // With a cgroup the kernel ends it; without one it can't get the memory.
        match host.place {
            Place::User if output.status.code() != Some(137) => drop(answer.denied(&["MEMORY"])),
            _ => assert_eq!(output.status.code(), Some(137), "{}", answer.whole),
        }
        beside.say("go");
        beside.wait_for_line("alive");
    }

    fn fill_the_disk(host) not_on_pods "before Kubernetes 1.22 a volume in memory has no size" {
        let control = host.outside(FILL, &[host.path("").to_str().unwrap(); 3]);
        let options = ["--workspace-size", "16m", "--tmp-size", "16m"];
        host.inside(&options, FILL, &["/workspace", "/tmp", "/dev/shm"])
            .all_denied(control.all_reached(), &["ENOSPC"]);
    }

    fn one_large_file(host) {
        let control = host.outside(FILL, &[host.path("").to_str().unwrap(); 3]);
        let options = ["--file-size", "16m"];
        host.inside(&options, FILL, &["/workspace", "/tmp", "/dev/shm"])
            .all_denied(control.all_reached(), &["EFBIG"]);
    }

    /// Far more files than any work needs, each empty: sizes alone don't hold that.
    fn a_million_files(host) not_on_pods "a volume in memory has no limit of files" {
        let probe = r#"
def fill():
    made = 0
    for folder in ARGS:
        os.chdir(folder)
        for i in range(250_000):
            os.mknod(str(i))
            made += 1
    return made
judge(fill)
"#;
        // The control has a file system in memory, too, but one without a limit.
        let folder = host.owned_folder("files");
        let mount = format!("mount -t tmpfs -o nr_inodes=0 none {} && exec \"$0\" \"$@\"", folder.display());
        let starter = ["unshare", "-m", "/bin/sh", "-c", &mount];
        host.outside_by(&starter, probe, &[folder.to_str().unwrap()]).reached();
        let options = ["--workspace-size", "512m"];
        host.inside(&options, probe, &["/workspace"]).denied(&["ENOSPC"]);
    }

    fn output_flood(host) {
        let code = "import os\nfor _ in range(32): os.write(1, b'x' * (1 << 20))";
        let output = host.run(&["--output", "1m"], code, &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(output.stdout.len(), 1 << 20);
        // All of it arrives where the limit is higher.
        let output = host.run(&["--output", "64m"], code, &[]);
        assert_eq!(output.stdout.len(), 32 << 20);
    }

    fn open_files(host) {
        let probe = r#"
def fill():
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]
    return len(held)
judge(fill)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&["--open-files", "128"], probe, &[]).denied(&["EMFILE"]);
    }

    /// Messages and shared memory of the sandbox's own, not of the host.
    fn locked_memory(host) {
        let probe = r#"
def lock():
    held = ctypes.create_string_buffer(16 << 20)
    if libc.mlock(held, len(held)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
judge(lock)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&[], probe, &[]).denied(&["ENOMEM", "EPERM"]);
    }
}
