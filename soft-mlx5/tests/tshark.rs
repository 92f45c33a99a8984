//! Wireshark's dissector accepts the software device's packets, from a recording and captured from
//! the loopback interface.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use uverbs_soft::packet::{
    Addressing, Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Gid, Headers, ImmDt, Opcode, Packet,
    PacketPool, Psn, Reth, Syndrome, XrcEth,
};
use uverbs_soft::wire::{Link, LinkType, NoWire, Pcap, Station, UdpWire, Wire};

/// A missing tool skips the test, except under `CI`, where it fails.
fn missing(what: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "{what} is missing, and CI is set");
    eprintln!("skipped: {what} is missing");
    true
}

fn no_tool(name: &str) -> bool {
    let found = Command::new(name).arg("--version").output().is_ok_and(|run| run.status.success());
    !found && missing(name)
}

/// One packet of every defined opcode of a supported transport.
fn one_of_each(route: Addressing) -> Vec<Packet> {
    (0..=255).map(Opcode).filter_map(|opcode| sample(route, opcode)).collect()
}

fn sample(route: Addressing, opcode: Opcode) -> Option<Packet> {
    let (_, operation, _, headers) = opcode.describe()?;
    let mut packet = Packet::new();
    packet.start(route, Bth::new(opcode, 0xffff, 0x1234, Psn::new(opcode.0.into())));
    for header in headers.iter() {
        match header {
            Headers::XRCETH => packet.push(XrcEth::new(5)),
            Headers::DETH => packet.push(Deth::new(0x1111_1111, 7)),
            Headers::RETH => packet.push(Reth::new(0x7f00_0000_1000, 0x4242, 5)),
            Headers::ATOMIC => packet.push(AtomicEth::new(0x1000, 0x4242, 1, 2)),
            Headers::AETH => packet.push(Aeth::new(Syndrome::ACK, 9)),
            Headers::ATOMIC_ACK => packet.push(AtomicAckEth { original: 3.into() }),
            _ => packet.push(ImmDt([1, 2, 3, 4])),
        };
    }
    if operation.has_payload() {
        packet.payload(5).copy_from_slice(b"bytes");
    }
    Some(packet)
}

/// Wireshark's names of some opcodes.
const NAMES: [(u8, &str); 14] = [
    (0x00, "Reliable Connection (RC) - SEND First"),
    (0x04, "Reliable Connection (RC) - SEND Only"),
    (0x05, "Reliable Connection (RC) - SEND Only with Immediate"),
    (0x0b, "Reliable Connection (RC) - RDMA WRITE Only with Immediate"),
    (0x0c, "Reliable Connection (RC) - RDMA READ Request"),
    (0x10, "Reliable Connection (RC) - RDMA READ response Only"),
    (0x11, "Reliable Connection (RC) - Acknowledge"),
    (0x12, "Reliable Connection (RC) - ATOMIC Acknowledge"),
    (0x13, "Reliable Connection (RC) - CmpSwap"),
    (0x14, "Reliable Connection (RC) - FetchAdd"),
    (0x17, "Reliable Connection (RC) - SEND Only with Invalidate"),
    (0x26, "Unreliable Connection (UC) - RDMA WRITE First"),
    (0x64, "Unreliable Datagram (UD) - SEND only"),
    (0xa4, "Extended Reliable Connection (XRC) - SEND Only"),
];

/// tshark without name lookups, and without the heuristic that mistakes every short SEND for RPC
/// over RDMA and then reports it as malformed.
fn tshark(file: &Path) -> Command {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "--disable-protocol", "rpcordma", "-r"]).arg(file);
    tshark
}

fn output(mut command: Command) -> String {
    let run = command.output().expect("tshark runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).expect("tshark writes UTF-8")
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("uverbs-soft-{}-{name}", std::process::id()))
}

/// Opcode and complaints of each packet that tshark dissects as InfiniBand.
fn dissect(file: &Path) -> Vec<(u8, String)> {
    let mut tshark = tshark(file);
    tshark.args(["-Y", "infiniband", "-T", "fields", "-E", "separator=|"]);
    tshark.args(["-e", "infiniband.bth.opcode", "-e", "_ws.expert.message"]);
    let split = |line: &str| {
        let (opcode, complaints) = line.split_once('|').expect("two fields");
        (opcode.parse().expect("a number"), complaints.to_owned())
    };
    output(tshark).lines().map(split).collect()
}

fn verify(file: &Path, packets: &[Packet]) {
    let opcodes = packets.iter().map(|packet| packet.bth().expect("a header").opcode().0);
    assert_eq!(dissect(file), opcodes.map(|opcode| (opcode, String::new())).collect::<Vec<_>>());
    let mut tshark = tshark(file);
    tshark.arg("-V");
    let text = output(tshark);
    for (code, name) in NAMES {
        let line = format!("Opcode: {name} ({code})");
        assert!(text.lines().any(|found| found.trim() == line), "no {line:?} in tshark's words");
    }
    for complaint in ["malformed", "incorrect", "bogus", "unknown opcode"] {
        assert!(!text.to_lowercase().contains(complaint), "tshark finds something {complaint}");
    }
}

#[test]
fn a_recording_reads_cleanly() {
    if no_tool("tshark") {
        return;
    }
    let [a, b] = [1, 2].map(Station::candidate);
    let v6 = |last| Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    for (link, route) in [
        (LinkType::Ethernet, Addressing::roce(a.gid(), b.gid())),
        (LinkType::RawIp, Addressing::roce(a.gid(), b.gid())),
        (LinkType::Ethernet, Addressing::roce(v6(1), v6(2))),
    ] {
        let file = temporary("recording.pcap");
        let packets = one_of_each(route);
        let mut wire = Pcap::create(NoWire, &file, link).expect("a temporary file");
        wire.send(0, &mut packets.clone(), &mut PacketPool::default());
        drop(wire);
        verify(&file, &packets);
        std::fs::remove_file(file).expect("the file is there");
    }
}

#[test]
fn captured_packets_read_cleanly_and_have_the_right_crc() {
    if no_tool("dumpcap") || no_tool("tshark") {
        return;
    }
    let mut left = UdpWire::bind_any(Link::Ethernet).expect("a free station");
    let right = UdpWire::bind_any(Link::Ethernet).expect("a free station");
    let mut route = Addressing::roce(left.station().gid(), right.station().gid());
    route.traffic_class = 0x20;
    let packets = one_of_each(route);
    let file = temporary("loopback.pcap");
    let filter = format!("udp and src host {}", left.station());
    let mut dumpcap = Command::new("dumpcap")
        .args(["-i", "lo", "-P", "-c", &packets.len().to_string(), "-a", "duration:20"])
        .args(["-f", &filter, "-w"])
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .expect("dumpcap starts");
    let mut lines = BufReader::new(dumpcap.stderr.take().expect("piped")).lines();
    if !lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("File:")) {
        let _ = dumpcap.wait();
        missing("permission to capture on the loopback interface");
        return;
    }
    left.send(0, &mut packets.clone(), &mut PacketPool::default());
    lines.for_each(drop);
    assert!(dumpcap.wait().expect("dumpcap ends").success());
    verify(&file, &packets);
    // Checks the CRC over the headers that the kernel wrote, because tshark does not check it.
    let frames = frames(&std::fs::read(&file).expect("the capture"));
    assert_eq!(frames.len(), packets.len());
    for (frame, packet) in frames.iter().zip(&packets) {
        let read = uverbs_soft::packet::rocev2::read_ethernet(frame);
        assert_eq!(read.as_ref(), Ok(packet));
    }
    std::fs::remove_file(file).expect("the file is there");
}

/// The frames of a pcap file in this machine's byte order.
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]) as usize;
        frames.push(after[..len].to_vec());
        rest = &after[len..];
    }
    frames
}
