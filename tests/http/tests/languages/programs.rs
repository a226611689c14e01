//! The same programs in every language.

pub(crate) struct Programs {
    pub language: &'static str,
    /// Prints `hello`.
    pub hello: &'static str,
    /// Prints its first line of input in capitals.
    pub stdin: &'static str,
    /// Ends with exit code 7.
    pub exit: &'static str,
    /// Is wrong in its third line.
    pub error: &'static str,
    /// What is said about that line.
    pub line_three: &'static str,
    pub forever: &'static str,
    /// Takes memory until there is none.
    pub hog: &'static str,
    /// Prints whether 127.0.0.1:PORT can be connected to: `reached` or `denied`.
    pub connect: &'static str,
    /// Prints for /work/x, /x and /tmp/x whether it could be written: `wrote` or `denied`.
    pub write: &'static str,
}

const SHELL: Programs = Programs {
    language: "sh",
    hello: "echo hello",
    stdin: "read -r line; echo \"$line\" | tr a-z A-Z",
    exit: "exit 7",
    error: "x=1\ny=2\nno_such_command\n",
    line_three: "main.sh: 3: no_such_command",
    forever: "while :; do :; done",
    hog: "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done",
    connect: "if bash -c 'exec 3<>/dev/tcp/127.0.0.1/PORT' 2>/dev/null; then echo reached; else echo denied; fi",
    write: "for f in /work/x /x /tmp/x; do if (echo x > $f) 2>/dev/null; then echo wrote; else echo denied; fi; done",
};

const NODE: Programs = Programs {
    language: "javascript",
    hello: "console.log('hello')",
    stdin: "console.log(require('fs').readFileSync(0, 'utf8').trim().toUpperCase())",
    exit: "process.exit(7)",
    error: "const a = 1\nconst b = 2\nthrow new Error('boom')\n",
    line_three: "main.js:3",
    forever: "while (true) {}",
    hog: "const all = []; while (true) all.push(Buffer.alloc(1 << 20, 1))",
    connect: "const s = require('net').connect(PORT, '127.0.0.1')\n\
              s.on('connect', () => { console.log('reached'); process.exit(0) })\n\
              s.on('error', () => console.log('denied'))",
    write: "for (const f of ['/work/x', '/x', '/tmp/x']) {\n\
            try { require('fs').writeFileSync(f, 'x'); console.log('wrote') }\n\
            catch { console.log('denied') } }",
};

pub(crate) static ALL: &[Programs] = &[
    Programs {
        language: "python",
        hello: "print('hello')",
        stdin: "print(input().upper())",
        exit: "import sys; sys.exit(7)",
        error: "a = 1\nb = 2\nraise ValueError('boom')\n",
        line_three: "main.py\", line 3",
        forever: "while True: pass",
        hog: "x = []\nwhile True: x.append(bytearray(1 << 20))",
        connect: "import socket\ntry:\n    socket.create_connection(('127.0.0.1', PORT))\n    \
                  print('reached')\nexcept OSError: print('denied')",
        write: "for f in ['/work/x', '/x', '/tmp/x']:\n    try:\n        open(f, 'w').write('x')\n        \
                print('wrote')\n    except OSError: print('denied')",
    },
    NODE,
    Programs {
        language: "typescript",
        stdin: "import { readFileSync } from 'node:fs'\nconst text: string = readFileSync(0, 'utf8')\n\
                console.log(text.trim().toUpperCase() as string)",
        error: "enum Color { Red }\ninterface A { b: number }\nthrow new Error('boom' as string)\n",
        line_three: "main.ts:3",
        ..NODE
    },
    Programs {
        language: "ruby",
        hello: "puts 'hello'",
        stdin: "puts gets.upcase",
        exit: "exit 7",
        error: "a = 1\nb = 2\nraise 'boom'\n",
        line_three: "main.rb:3",
        forever: "loop {}",
        hog: "x = []; loop { x << ('x' * (1 << 20)) }",
        connect: "require 'socket'\nbegin\n TCPSocket.new('127.0.0.1', PORT); puts 'reached'\n\
                  rescue SystemCallError\n puts 'denied'\nend",
        write: "['/work/x', '/x', '/tmp/x'].each do |f|\nbegin\nFile.write(f, 'x'); puts 'wrote'\n\
                rescue SystemCallError\nputs 'denied'\nend\nend",
    },
    Programs {
        language: "php",
        hello: "<?php echo \"hello\\n\";",
        stdin: "<?php echo strtoupper(fgets(STDIN));",
        exit: "<?php exit(7);",
        error: "<?php\n$a = 1;\nthrow new Exception('boom');\n",
        line_three: "main.php:3",
        forever: "<?php while (true) {}",
        hog: "<?php ini_set('memory_limit', -1); $x = []; while (true) $x[] = str_repeat('x', 1 << 20);",
        connect: "<?php echo @fsockopen('127.0.0.1', PORT) ? \"reached\\n\" : \"denied\\n\";",
        write: "<?php foreach (['/work/x', '/x', '/tmp/x'] as $f)\n\
                echo @file_put_contents($f, 'x') ? \"wrote\\n\" : \"denied\\n\";",
    },
    Programs {
        language: "perl",
        hello: "print \"hello\\n\";",
        stdin: "print uc(<STDIN>);",
        exit: "exit 7;",
        error: "my $a = 1;\nmy $b = 2;\ndie 'boom';\n",
        line_three: "main.pl line 3",
        forever: "while (1) {}",
        hog: "my @x; while (1) { push @x, 'x' x (1 << 20); }",
        connect: "use IO::Socket::INET;\n\
                  print IO::Socket::INET->new('127.0.0.1:PORT') ? \"reached\\n\" : \"denied\\n\";",
        write: "for my $f ('/work/x', '/x', '/tmp/x') {\n\
                print open(my $h, '>', $f) ? \"wrote\\n\" : \"denied\\n\"; }",
    },
    Programs {
        language: "lua",
        hello: "print('hello')",
        stdin: "print(io.read():upper())",
        exit: "os.exit(7)",
        error: "local a = 1\nlocal b = 2\nerror('boom')\n",
        line_three: "main.lua:3",
        forever: "while true do end",
        hog: "local x = {} while true do x[#x + 1] = string.rep('x', 1 << 20) .. #x end",
        // It has no sockets of its own.
        connect: "local ok = os.execute(\"bash -c 'exec 3<>/dev/tcp/127.0.0.1/PORT' 2>/dev/null\")\n\
                  print(ok and 'reached' or 'denied')",
        write: "for _, f in ipairs({'/work/x', '/x', '/tmp/x'}) do\n\
                print(io.open(f, 'w') and 'wrote' or 'denied') end",
    },
    Programs {
        language: "r",
        hello: "cat('hello\\n')",
        stdin: "cat(toupper(readLines('stdin', 1)), '\\n', sep = '')",
        exit: "quit(status = 7)",
        error: "a <- 1\nb <- 2\nstop('boom')\n",
        line_three: "main.R:3: error",
        forever: "while (TRUE) {}",
        hog: "x <- list(); while (TRUE) x[[length(x) + 1]] <- rep(1.5, 1e6)",
        connect: "r <- tryCatch({ socketConnection('127.0.0.1', PORT); 'reached' },\n\
                  error = function(e) 'denied', warning = function(w) 'denied')\ncat(r, '\\n', sep = '')",
        write: "for (f in c('/work/x', '/x', '/tmp/x'))\n\
                cat(tryCatch({ writeLines('x', f); 'wrote' }, error = function(e) 'denied',\n\
                warning = function(w) 'denied'), '\\n', sep = '')",
    },
    Programs {
        language: "bash",
        line_three: "main.sh: line 3: no_such_command",
        ..SHELL
    },
    SHELL,
    Programs {
        language: "zsh",
        line_three: "main.zsh:3: command not found",
        connect: "zmodload zsh/net/tcp\n\
                  if ztcp 127.0.0.1 PORT 2>/dev/null; then echo reached; else echo denied; fi",
        ..SHELL
    },
    Programs {
        language: "go",
        hello: "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"hello\") }",
        stdin: "package main\nimport (\"bufio\"; \"fmt\"; \"os\"; \"strings\")\n\
                func main() { s, _ := bufio.NewReader(os.Stdin).ReadString('\\n'); fmt.Print(strings.ToUpper(s)) }",
        exit: "package main\nimport \"os\"\nfunc main() { os.Exit(7) }",
        error: "package main\nfunc main() {\nundefined_name()\n}",
        line_three: "main.go:3:",
        forever: "package main\nfunc main() { for {} }",
        hog: "package main\nvar x [][]byte\nfunc main() { for { b := make([]byte, 1<<20)\n\
              for i := range b { b[i] = 1 }\nx = append(x, b) } }",
        connect: "package main\nimport (\"fmt\"; \"net\")\nfunc main() {\n\
                  if _, e := net.Dial(\"tcp\", \"127.0.0.1:PORT\"); e == nil { fmt.Println(\"reached\") } else { fmt.Println(\"denied\") } }",
        write: "package main\nimport (\"fmt\"; \"os\")\nfunc main() {\n\
                for _, f := range []string{\"/work/x\", \"/x\", \"/tmp/x\"} {\n\
                if os.WriteFile(f, []byte(\"x\"), 0600) == nil { fmt.Println(\"wrote\") } else { fmt.Println(\"denied\") } } }",
    },
    Programs {
        language: "rust",
        hello: "fn main() { println!(\"hello\") }",
        stdin: "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap(); print!(\"{}\", s.to_uppercase()) }",
        exit: "fn main() { std::process::exit(7) }",
        error: "fn main() {\nlet a = 1;\nundefined_name();\n}",
        line_three: "main.rs:3:",
        forever: "fn main() { loop { std::hint::spin_loop() } }",
        hog: "fn main() { let mut x = Vec::new(); loop { x.push(vec![1u8; 1 << 20]); if x.len() == 1 << 40 { println!(\"{x:?}\") } } }",
        connect: "fn main() { match std::net::TcpStream::connect(\"127.0.0.1:PORT\") { Ok(_) => println!(\"reached\"), Err(_) => println!(\"denied\") } }",
        write: "fn main() { for f in [\"/work/x\", \"/x\", \"/tmp/x\"] { match std::fs::write(f, \"x\") { Ok(_) => println!(\"wrote\"), Err(_) => println!(\"denied\") } } }",
    },
    Programs {
        language: "java",
        hello: "public class Hello { public static void main(String[] a) { System.out.println(\"hello\"); } }",
        stdin: "class T { public static void main(String[] a) { System.out.println(new java.util.Scanner(System.in).nextLine().toUpperCase()); } }",
        exit: "class T { public static void main(String[] a) { System.exit(7); } }",
        error: "public class T {\npublic static void main(String[] a) {\nundefinedName();\n} }",
        line_three: "T.java:3:",
        forever: "class T { public static void main(String[] a) { while (true) {} } }",
        hog: "class T { public static void main(String[] a) { var x = new java.util.ArrayList<byte[]>(); while (true) { byte[] b = new byte[1 << 20]; java.util.Arrays.fill(b, (byte) 1); x.add(b); } } }",
        connect: "class T { public static void main(String[] a) { try { new java.net.Socket(\"127.0.0.1\", PORT); System.out.println(\"reached\"); } catch (Exception e) { System.out.println(\"denied\"); } } }",
        write: "class T { public static void main(String[] a) { for (String f : new String[]{\"/work/x\", \"/x\", \"/tmp/x\"}) try { java.nio.file.Files.writeString(java.nio.file.Path.of(f), \"x\"); System.out.println(\"wrote\"); } catch (Exception e) { System.out.println(\"denied\"); } } }",
    },
    C,
    Programs {
        language: "c++",
        hello: "#include <iostream>\nint main() { std::cout << \"hello\" << std::endl; }",
        hog: "#include <vector>\nint main() { std::vector<std::vector<char>> x; for (;;) x.emplace_back(1 << 20, 'x'); }",
        line_three: "main.cpp:3:",
        ..C
    },
];

const C: Programs = Programs {
    language: "c",
    hello: "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }",
    stdin: "#include <ctype.h>\n#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(toupper(c)); return 0; }",
    exit: "int main(void) { return 7; }",
    error: "int main(void) {\nint a = 1;\nundefined_name = a;\n}",
    line_three: "main.c:3:",
    forever: "int main(void) { volatile int a = 1; while (a) {} return 0; }",
    hog: "#include <stdlib.h>\n#include <string.h>\nint main(void) { for (;;) { char *p = malloc(1 << 20); if (!p) abort(); memset(p, 1, 1 << 20); volatile char *q = p; (void)q[5]; } }",
    connect: "#include <arpa/inet.h>\n#include <stdio.h>\n#include <sys/socket.h>\nint main(void) {\n\
              struct sockaddr_in a = {}; a.sin_family = AF_INET; a.sin_port = htons(PORT); a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);\n\
              int s = socket(AF_INET, SOCK_STREAM, 0);\n\
              puts(connect(s, (struct sockaddr *)&a, sizeof a) == 0 ? \"reached\" : \"denied\"); return 0; }",
    write: "#include <stdio.h>\nint main(void) { const char *f[] = {\"/work/x\", \"/x\", \"/tmp/x\"};\n\
            for (int i = 0; i < 3; i++) puts(fopen(f[i], \"w\") ? \"wrote\" : \"denied\"); return 0; }",
};
