//! Wrong arguments and input get one sentence and status 2.

use crate::process::{Scratch, run, run_with_input};

#[test]
fn one_sentence_and_status_2() {
    for (line, words) in [
        ("", "command is missing"),
        ("frobnicate", "frobnicate"),
        ("devices extra", "extra"),
        ("info nosuch", "no device nosuch"),
        ("info nosuch", "the software device is called soft"),
        ("info 10.0.0.1", "uverbs info --to 10.0.0.1"),
        ("info fe80::1", "uverbs info --to fe80::1"),
        ("info host.invalid:80", "uverbs info --to host.invalid:80"),
        ("info --jason", "--jason"),
        ("doctor nosuch", "no RDMA device nosuch; it has "),
        ("run -- /proc/self/maps", "is not executable (chmod +x"),
        ("capture .", ". is a directory: name a file in it"),
        ("capture . --overwrite", ". is a directory: name a file in it"),
        ("pingpong --size 0", "0"),
        ("pingpong --size 64k", "64k"),
        ("pingpong --size -1", "-1 is not in 1..=1073741824"),
        ("pingpong --size", "--size"),
        ("pingpong --gid-index -1", "-1 is not in 0..=255"),
        ("pingpong --port -1", "-1 is not in 0..=65535"),
        ("pingpong --size 99999999999", "99999999999"),
        ("pingpong --iters 0", "0"),
        ("pingpong --iters -5", "-5"),
        ("pingpong --op swap", "swap"),
        ("pingpong --op atomic --size 16", "8 bytes"),
        ("pingpong --poll --events", "--events"),
        ("pingpong --listen somewhere", "not an IP address (0.0.0.0 is every IPv4 address"),
        ("pingpong --listen 127.0.0.1 host", "--listen"),
        ("pingpong --code x", "HOST or --listen"),
        ("pingpong --no-code", "HOST or --listen"),
        ("pingpong --listen --code", "--code"),
        ("pingpong --listen --peer ibv --code x", "no code"),
        ("perf lat --code x", "HOST or --listen"),
        ("transfer recv . --code x --no-code", "--no-code"),
        ("transfer recv . --listen here", "not an IP address (0.0.0.0 is every IPv4 address"),
        ("pingpong --device mlx5_77", "the software device is called soft"),
        ("pingpong --device soft --gid-index 200", "GID index 200"),
        ("pingpong --port 70000", "70000"),
        ("pingpong host.invalid", "host.invalid"),
        ("pingpong 127.0.0.1:7", "the port has an option of its own: 127.0.0.1 --port 7"),
        ("perf lat --cm [::1]:7", "::1 --port 7"),
        ("perf bw localhost:0", "localhost --port 0"),
        ("pingpong fe80::1", "name its interface: fe80::1%eth0"),
        ("pingpong --cm fe80::1%nosuch", "no interface nosuch"),
        ("pingpong --child-of 1", "--listen"),
        ("perf", "<lat|bw|frames>"),
        ("perf speed", "speed"),
        ("perf lat --sizes 1,x", "'x' is not a size"),
        ("perf lat --sizes 0", "'0' is not a size"),
        ("perf lat --qps 2", "bw only"),
        ("perf bw --events", "lat only"),
        ("perf lat --events --op write", "no event"),
        ("perf lat --depth 4", "bw and frames only"),
        ("perf lat --rate 5", "frames only"),
        ("perf bw --burst 5", "frames only"),
        ("perf bw --op read --inline 8", "messages that are sent"),
        ("perf frames --op read", "lat and bw only"),
        ("perf frames --op send", "lat and bw only"),
        ("perf frames --qps 1", "bw only"),
        ("perf frames --inline 0", "lat and bw only"),
        ("perf frames --events", "lat only"),
        ("perf frames --cm", "lat and bw only"),
        ("perf frames --gid-index 0", "lat and bw only"),
        ("perf --listen --iters 5", "--iters does not go with --listen"),
        ("perf --listen --plot x.svg", "--plot does not go with --listen"),
        ("pingpong --listen --size 64", "--size does not go with --listen"),
        ("capture a.pcapng --gid-index 0", "have no GIDs"),
        ("replay Cargo.toml --gid-index 0", "have no GIDs"),
        ("capture a.pcapng --count 0", "0 is not in 1.."),
        ("replay Cargo.toml --count 0", "0 is not in 1.."),
        ("capture a.pcapng --rule udp:0", "ports are 1 to 65535"),
        ("devices --root /no/such/directory", "not a directory"),
        ("info --root /no/such/directory", "not a directory"),
        ("doctor --root /no/such/directory", "not a directory"),
        ("perf bw --op atomic --sizes 16", "8 bytes"),
        ("perf bw --depth 0", "0"),
        ("perf bw --depth -1", "-1 is not in 1..=4096"),
        ("perf lat --sizes -8", "'-8' is not a size"),
        ("perf bw --inline 4096", "4096"),
        ("perf lat --cpu 1023", "processor 1023: it is not there, or not allowed (taskset"),
        ("perf lat --listen", "--listen"),
        ("transfer", "command is missing"),
        ("transfer recv", "<DIR>"),
        ("transfer recv . --port -1", "-1 is not in 0..=65535"),
        ("run", "<PROGRAM>"),
        ("run --devices 0 true", "0 is not in 1..=32"),
        ("transfer recv /no/such/directory", "does not exist"),
        ("transfer recv /dev/null", "not a directory"),
        ("transfer send", "<FILE>"),
        ("transfer send onlyone", "at least one FILE, and the receiver's HOST last"),
        ("transfer send /dev/null 127.0.0.1", "not a regular file"),
        ("transfer send .. 127.0.0.1", "not a file"),
        ("transfer send Cargo.toml ../Cargo.toml 127.0.0.1", "called Cargo.toml"),
        ("wqe", "command is missing"),
        ("pingpnog", "'pingpong'"),
        ("pingpong --itres 5", "similar argument exists: '--iters'"),
        ("wqe decode zz", "not a dump"),
        ("wqe decode abc", "an odd number of hex digits in a row (3)"),
        ("wqe decode 00", "not a WQE"),
        ("wqe decode --type rd 00", "no queue type rd"),
        ("wqe decode --queue recv --stride 0 00", "an entry has 16 bytes"),
        ("wqe decode --stride x 00", "x"),
        ("cqe decode 0011", "a whole number of CQEs"),
        ("cqe decode 0011 --size 32", "32"),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let ended = run(&arguments).failure(2, words);
        assert_eq!(ended.stderr.lines().count(), 1, "{line}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{line}: {ended:?}");
    }
}

#[test]
fn an_address_of_another_machine_is_refused_with_the_cure() {
    for line in ["pingpong --listen 203.0.113.9", "transfer recv . --listen 203.0.113.9"] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let ended = run(&arguments).failure(1, "cannot listen on 203.0.113.9:");
        assert!(ended.stderr.contains("ip address lists this machine's"), "{ended:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_status_1() {
    run(&["transfer", "send", "/no/such/file", "127.0.0.1"])
        .failure(1, "cannot read /no/such/file");
    let scratch = Scratch::new("no-listener");
    let file = scratch.file("a", b"a");
    // No program listens on port 1 of loopback.
    run(&["transfer", "send", file.to_str().expect("a path"), "127.0.0.1", "--port", "1"])
        .failure(1, "cannot reach");
    run(&["pingpong", "127.0.0.1", "--port", "1"]).failure(1, "cannot reach");
}

#[test]
fn input_that_is_not_a_dump_is_status_2() {
    run_with_input(&["wqe", "decode"], &[0xff, 0xfe, 0])
        .failure(2, "neither JSON lines nor a dump");
    run_with_input(&["cqe", "decode"], b"").failure(2, "not a dump");
}
