//! The command line of `uverbs`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use uverbs::soft::wire::HostAddress;

/// TCP port of the out-of-band connection of `pingpong`.
pub(crate) const PINGPONG_PORT: u16 = 18515;
/// TCP port of the out-of-band connection of `transfer`.
pub(crate) const TRANSFER_PORT: u16 = 18516;

/// TCP port of the out-of-band connection of `perf`.
pub(crate) const PERF_PORT: u16 = 18517;

/// The meaning of `decode`'s exit status.
const DECODE_STATUS: &str = "Exit status: 0 if the bytes have the size of entries, even if a NIC would refuse them (the \
    output says so). 2 if they do not, or are not hexadecimal. JSON lines: always 0; the answer to a line that cannot be \
    decoded is its \"error\".";

/// RDMA verbs on NVIDIA ConnectX (mlx5) devices, or on the software ConnectX that is built in.
#[derive(Debug, Parser)]
#[command(name = "uverbs", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the RDMA devices of this machine
    Devices(Devices),
    /// Show a device: limits, ports, GIDs, and what is missing on this machine
    Info(Info),
    /// Show settings of this machine that cost a polling program time, and how to change them
    Doctor(Doctor),
    /// Bounce messages between two ends, verify every byte, measure the round trips
    Pingpong(Pingpong),
    /// Measure latency or bandwidth
    Perf(Perf),
    /// Move files over RDMA WRITE
    #[command(subcommand)]
    Transfer(Transfer),
    /// Record the frames of an Ethernet port in pcapng files, with the device's timestamps
    ///
    /// The times are those at which the device received the frames, in nanoseconds. Nothing is
    /// taken from programs beside it: they keep getting their frames, with the rule `sniffer`, or
    /// with the same GROUP:PORT as theirs. It needs CAP_NET_RAW on a kernel's device.
    ///
    /// The rules:
    ///   sniffer           copies of all frames, received and sent
    ///   GROUP:PORT        a multicast line; GROUP:PORT@VLAN with this VLAN tag
    ///   udp:PORT          packets to a port, which then no longer reach the kernel
    ///   tcp:PORT
    ///   leftovers         frames that neither a rule nor the kernel takes
    ///
    /// SIGINT and SIGTERM end the recording: the file is complete then. The end of the file says
    /// how many frames came and how many were dropped. A full disk ends it with status 1; what was
    /// written before stays.
    #[command(verbatim_doc_comment)]
    Capture(Capture),
    /// Send the frames of a recording, at their times or at a rate
    ///
    /// The recording is pcap or pcapng, of either byte order, as `uverbs capture`, tcpdump and
    /// Wireshark write them. Frames leave as they were recorded, so their checksums and addresses
    /// must be what the receiver wants. It needs CAP_NET_RAW on a kernel's device.
    ///
    /// Each frame is due at its own time: one that is late does not delay those behind it. The
    /// report says how late frames were. Frames that were not recorded whole are skipped, and
    /// counted.
    ///
    /// Exit status: 0; 1 if the device failed; 2 if the file is no recording.
    Replay(Replay),
    /// Run an unmodified libibverbs program on the software ConnectX
    Run(Run),
    /// Encode or decode work-queue entries
    #[command(subcommand)]
    Wqe(Wqe),
    /// Encode or decode completion-queue entries
    #[command(subcommand)]
    Cqe(Cqe),
}

#[derive(Debug, Args)]
pub(crate) struct Devices {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Use the sys and dev directories below DIR instead of the machine's own
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The device's name; `soft` is the software ConnectX [default: every kernel device, else soft]
    pub(crate) device: Option<String>,
    /// Say which device leads to ADDRESS or to a host of this name, or why none does, instead
    #[arg(long, value_name = "ADDRESS", conflicts_with = "root")]
    pub(crate) to: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Use the sys and dev directories below DIR instead of the machine's own
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The kernel's name of a device; `soft` for the machine alone [default: every kernel device]
    pub(crate) device: Option<String>,
    /// The processors that poll, like 2 or 2,4-7 [default: the isolated ones]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,
    /// End with status 1 if a setting is worth changing
    #[arg(long)]
    pub(crate) check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Use the sys and proc directories below DIR instead of the machine's own
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
}

/// The device, and the address of it that is used.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceChoice {
    /// The device's name; `soft` is the software ConnectX [default: the first mlx5 device, else
    /// soft]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Index into the port's GID table [default: chosen as `uverbs info` says]
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) gid_index: Option<u8>,
    /// Use the software device, at this address of this machine, of any interface (IPv6 link-local:
    /// fe80::1%eth0); packets travel as RoCE v2 over UDP [default: UVERBS_SOFT_ADDRESS, else a
    /// free one of 127.18.0.0/16, for programs of this machine]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<HostAddress>,
}

/// Checks a list of addresses, which is used as it is.
fn addresses(list: &str) -> Result<String, String> {
    HostAddress::of_list(list, 0).map(|_| list.to_owned())
}

/// The code that both ends must have.
#[derive(Debug, Clone, Args)]
pub(crate) struct CodeChoice {
    /// The code that both ends must have. Other users of the machine see it, unless UVERBS_CODE
    /// sets it; observers of the network can guess a short one [default: the listening end makes
    /// one up and prints it]
    #[arg(long, value_name = "CODE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) code: Option<String>,
    /// Accept any peer; both ends need this option
    #[arg(long, conflicts_with = "code")]
    pub(crate) no_code: bool,
}

impl CodeChoice {
    pub(crate) fn is_given(&self) -> bool {
        self.no_code || self.code.is_some()
    }
}

/// What the two ends of a measurement or pingpong are told about each other and their devices.
#[derive(Debug, Clone, Args)]
pub(crate) struct PairOptions {
    /// Listen for the other end, on loopback unless ADDRESS is given; the other end decides what is
    /// done
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1")]
    pub(crate) listen: Option<IpAddr>,
    /// Connect the queue pairs by address, through the connection manager (rdma_cm), instead of
    /// telling the other end of them
    #[arg(long, conflicts_with = "listen")]
    pub(crate) cm: bool,
    #[command(flatten)]
    pub(crate) code: CodeChoice,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The process that started this one as its other end
    #[arg(long, hide = true, requires = "listen")]
    pub(crate) child_of: Option<u32>,
}

/// The operation that carries a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// SEND both ways
    Send,
    /// RDMA WRITE both ways, seen by polling memory
    Write,
    /// RDMA WRITE with immediate both ways, seen as a completion
    WriteImm,
    /// RDMA READ of the peer's memory
    Read,
    /// fetch-and-add and compare-and-swap on the peer's counter
    Atomic,
}

/// The program at the other end of a pingpong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// This command
    Uverbs,
    /// rdma-core's ibv_rc_pingpong: give both ends the same size and number of rounds (its -s and
    /// -n), and give it -g on RoCE, or if this end has --gid-index
    Ibv,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Pingpong {
    /// The listening end's host name or address [default: run both ends here]
    #[arg(conflicts_with = "listen")]
    pub(crate) host: Option<String>,
    /// TCP port for the exchange of addresses; 0 lets the listening end choose one, which it prints
    #[arg(long, allow_negative_numbers = true, default_value_t = PINGPONG_PORT)]
    pub(crate) port: u16,
    /// The program at the other end
    #[arg(long, value_enum, default_value_t = Peer::Uverbs)]
    pub(crate) peer: Peer,
    /// Bytes in a message [default: 64, with --peer ibv 4096; atomics have 8]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) size: Option<u32>,
    /// Number of round trips [default: 10000, with --peer ibv 1000; both ends need the same]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iters: Option<u64>,
    /// The operation that carries the messages
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub(crate) op: Op,
    /// Poll for completions (the default)
    #[arg(long, conflicts_with = "events")]
    pub(crate) poll: bool,
    /// Sleep until a completion event instead of polling (a plain write makes no event where it
    /// arrives, so it is always polled for)
    #[arg(long)]
    pub(crate) events: bool,
    #[command(flatten)]
    pub(crate) pair: PairOptions,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// One message at a time: half the round trip of a send or write, the whole of a read or atomic
    Lat,
    /// As many messages as the queues hold
    Bw,
    /// Ethernet frames past the kernel's network stack: half round trips, a fixed rate, bursts,
    /// from a frame's arrival to its answer's departure by the device's clock, cold and warm sends,
    /// steering rules
    Frames,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Perf {
    /// What to measure
    #[arg(value_enum, required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) measure: Option<Measure>,
    /// The listening end's host name or address [default: run both ends here]
    pub(crate) host: Option<String>,
    /// TCP port for the exchange of addresses; 0 lets the listening end choose one, which it prints
    #[arg(long, allow_negative_numbers = true, default_value_t = PERF_PORT)]
    pub(crate) port: u16,
    /// Latency and bandwidth: the operation; atomic is fetch-and-add
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub(crate) op: Op,
    /// Bytes in a message, several with commas, or `all` for the powers of two from 2 to 8 MiB
    /// [default: 64; atomics have 8]. Frames: one length from 60 to 226
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES")]
    pub(crate) sizes: Option<String>,
    /// Messages of each size (at most 4 GiB of them)
    #[arg(long, allow_negative_numbers = true, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iters: u64,
    /// Bandwidth: queue pairs, each with its own completion queue
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) qps: u32,
    /// Bandwidth: messages outstanding per queue pair [default: 64]. Frames: receives of each queue
    /// [default: 512]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) depth: Option<u32>,
    /// Latency and bandwidth: messages of at most this many bytes are sent inline, in the work
    /// request
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=828))]
    pub(crate) inline: u32,
    /// Frames: the fixed rate, in frames per second
    #[arg(long, allow_negative_numbers = true, value_name = "FRAMES", default_value_t = 10_000.0, value_parser = positive)]
    pub(crate) rate: f64,
    /// Frames: the length of a burst
    #[arg(long, allow_negative_numbers = true, value_name = "FRAMES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) burst: u32,
    /// Latency: sleep until a completion event instead of polling
    #[arg(long)]
    pub(crate) events: bool,
    /// Run on this processor only; if both ends run here the other one takes the next
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Draw the results as an SVG picture
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pair: PairOptions,
}

#[derive(Debug, Args)]
pub(crate) struct Capture {
    /// The file. With --rotate-mib or --rotate-seconds a number goes in front of its extension
    pub(crate) file: PathBuf,
    // No doc comment: rustdoc would take the brackets for a link.
    #[arg(long, value_name = "RULE", default_value = "sniffer")]
    #[arg(help = "Which frames: sniffer, GROUP:PORT[@VLAN], udp:PORT, tcp:PORT or leftovers")]
    pub(crate) rule: crate::capture::Rule,
    /// Join the rule's group on the network device with this address (IGMP)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) join: Option<IpAddr>,
    /// End after this many frames
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// End after this time
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", value_parser = positive)]
    pub(crate) seconds: Option<f64>,
    /// Record the first BYTES of each frame
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) snap: Option<u32>,
    /// Begin another file after this many MiB
    #[arg(long, allow_negative_numbers = true, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) rotate_mib: Option<u64>,
    /// Begin another file after this time
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", value_parser = positive)]
    pub(crate) rotate_seconds: Option<f64>,
    /// Keep the last N files alone
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Replace files that exist already
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Receives: the longest burst that is recorded whole while the disk is busy
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub(crate) depth: u32,
    /// Bytes of a buffer: longer frames are dropped, and counted
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=16384))]
    pub(crate) frame_bytes: u32,
    /// Take times from the device's PTP clock, where it has real-time timestamps, instead of
    /// converting its free-running counter
    #[arg(long)]
    pub(crate) real_time: bool,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The recording
    pub(crate) file: PathBuf,
    /// Send this many frames per second, instead of at their times
    #[arg(long, allow_negative_numbers = true, value_name = "FRAMES", value_parser = positive, conflicts_with_all = ["speed", "fast"])]
    pub(crate) rate: Option<f64>,
    /// Send this many times faster than recorded
    #[arg(long, allow_negative_numbers = true, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive, conflicts_with = "fast")]
    pub(crate) speed: f64,
    /// Send as fast as the device takes frames
    #[arg(long)]
    pub(crate) fast: bool,
    /// Send the recording this many times
    #[arg(long = "loop", allow_negative_numbers = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) loops: u64,
    /// End after this many frames
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Frames that may be under way
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) depth: u32,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number above 0 and below a billion.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| "it is no number above 0 and up to a billion".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Transfer {
    /// Wait for one sender and store its files in DIR
    Recv(TransferRecv),
    /// Send files to the receiver at HOST
    Send(TransferSend),
}

#[derive(Debug, Args)]
pub(crate) struct TransferRecv {
    /// The directory for the files; it must exist
    pub(crate) dir: PathBuf,
    /// Address to listen on: 0.0.0.0 is every IPv4 address of this machine, :: every address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,
    /// TCP port to listen on; 0 lets the system choose one, which is printed
    #[arg(long, allow_negative_numbers = true, default_value_t = TRANSFER_PORT)]
    pub(crate) port: u16,
    /// Replace files that exist already
    #[arg(long)]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) code: CodeChoice,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print a JSON object per line: where this end listens and its code, then each file that is
    /// stored
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TransferSend {
    /// The files, and last the receiver's host name or address
    #[arg(num_args = 2.., required = true, value_names = ["FILE", "HOST"])]
    pub(crate) files_and_host: Vec<PathBuf>,
    /// The receiver's TCP port
    #[arg(long, allow_negative_numbers = true, default_value_t = TRANSFER_PORT)]
    pub(crate) port: u16,
    /// Connect the queue pairs by address, through the connection manager (rdma_cm), instead of
    /// telling the other end of them
    #[arg(long)]
    pub(crate) cm: bool,
    #[command(flatten)]
    pub(crate) code: CodeChoice,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print a JSON object per line: each file that is sent
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs an unmodified program that was built for libibverbs: its own libibverbs and libmlx5 find a
/// software ConnectX in the program's own process. No RDMA hardware, kernel module or privilege is
/// needed. Programs run so reach each other, and those that use the uverbs crate, at loopback
/// addresses 127.18.y.z.
///
/// The exit status is the program's (128 and the signal's number if a signal ended it).
///
/// It does not work for statically linked programs, and for programs that make system calls without
/// the C library.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Number of devices: /dev/infiniband/uverbs0, uverbs1 …
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) devices: u32,
    /// The ports' link layer
    #[arg(long, value_enum, default_value_t = RunLink::Roce)]
    pub(crate) link: RunLink,
    /// The model of the devices
    #[arg(long, value_enum, default_value_t = RunModel::Cx6dx)]
    pub(crate) model: RunModel,
    /// The kernel that programs see
    #[arg(long, value_enum, default_value_t = RunKernel::Current)]
    pub(crate) kernel: RunKernel,
    /// The devices' addresses, with commas between them; further devices have those behind the
    /// last one. Each is an address of this machine, of any interface (IPv6 link-local:
    /// fe80::1%eth0); packets travel as RoCE v2 over UDP [default: UVERBS_SOFT_ADDRESS, else free
    /// ones of 127.18.0.0/16, for programs of this machine]
    #[arg(long, value_name = "ADDRESS[,…]", value_parser = addresses)]
    pub(crate) address: Option<String>,
    /// What carries packets between processes
    #[arg(long, value_enum, default_value_t = RunWire::Memory)]
    pub(crate) wire: RunWire,
    /// Faults to inject, from a seed. SEED alone: every fault that the transport repairs, at low
    /// rates. Else
    /// SEED,drop=%,duplicate=%,corrupt=%,reorder=%,delay=%,ioctl=N:ERRNO,port=MS,remove=MS
    #[arg(long, value_name = "SEED[,FAULT=…]")]
    pub(crate) faults: Option<String>,
    /// Record the packets of the wire; every process but the first adds its number to the name
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Write a line for every call on the devices [default: to standard error]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) trace: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunWire {
    /// Memory shared with processes of the same user that offer it, RoCEv2 over UDP to others
    Memory,
    /// Memory shared with processes of any user that have this option too, RoCEv2 over UDP to
    /// others
    MemoryOfAnyUser,
    /// RoCEv2 over UDP alone, for tcpdump and Wireshark on the loopback interface
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunLink {
    /// RoCE
    Roce,
    /// InfiniBand
    Ib,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunModel {
    /// ConnectX-5
    Cx5,
    /// ConnectX-6 Dx
    Cx6dx,
    /// ConnectX-7
    Cx7,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunKernel {
    /// A current one
    Current,
    /// Doorbell pages are not objects yet (Linux 5.4)
    StaticUar,
    /// Queues are created by write commands (Linux 5.0)
    WriteCommands,
    /// Knows only the shortest request for a context
    ShortContext,
}

const ENCODE_WQE: &str = r#"A line is a queue and the list that is posted to it. A write, a send with inline data, a receive:

{"qp": {"type": "rc", "qpn": "0x100", "sq_wqebbs": 64, "max_send_sge": 2, "max_inline_data": 64}, "wrs": [{"opcode": "RDMA_WRITE", "flags": 2, "raddr": "0x1000", "rkey": "0x1234", "sge": [{"addr": "0x2000", "len": 64, "lkey": 7}]}]}
{"qp": {"type": "rc", "qpn": "0x100", "sq_wqebbs": 64, "max_send_sge": 2, "max_inline_data": 64}, "wrs": [{"opcode": "SEND", "flags": 10, "sge": [{"addr": 0, "len": 4, "lkey": 0, "data": "01020304"}]}]}
{"stride": 32, "start": 0, "wrs": [{"sge": [{"addr": "0x2000", "len": 64, "lkey": 7}]}]}

Members are named as those of struct ibv_send_wr and ibv_sge; flags are enum ibv_send_flags
(2 signaled, 8 inline). Others: imm_be, inv_rkey, compare_add, swap, av (48 bytes), remote_qpn,
remote_qkey, remote_srqn, mw_rkey, mw_type, new_rkey, bind_addr, bind_len, bind_flags, bind_lkey,
mss, hdr; of the queue sq_sig_all and min_inline_header; of the line start. A line that cannot be
read is answered by one with an error, and the status stays 0."#;

const ENCODE_CQE: &str = r#"A line is a completion. A receive of 64 bytes, and an error:

{"opcode": 128, "qp_num": "0x100", "user_index": 5, "wqe_counter": 3, "byte_len": 64}
{"status": 12, "vendor_err": 129, "qp_num": "0x100", "user_index": 5, "wqe_counter": 3}

opcode is enum ibv_wc_opcode, status enum ibv_wc_status. Others: imm_be, src_qp, wc_flags,
pkey_index, slid, sl, dlid_path_bits, timestamp, solicited, owner, inline (32 bytes at most). A line
that cannot be read is answered by one with an error, and the status stays 0."#;

#[derive(Debug, Subcommand)]
pub(crate) enum Wqe {
    /// Work requests (JSON lines on standard input) to work-queue bytes (JSON lines)
    #[command(after_long_help = ENCODE_WQE, term_width = 0)]
    Encode,
    /// Work-queue bytes to words; JSON lines to JSON lines
    Decode(DecodeWqe),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cqe {
    /// Completions (JSON lines on standard input) to completion-queue bytes (JSON lines)
    #[command(after_long_help = ENCODE_CQE, term_width = 0)]
    Encode,
    /// Completion-queue bytes to words; JSON lines to JSON lines
    Decode(DecodeCqe),
}

#[derive(Debug, Args)]
#[command(after_help = DECODE_STATUS)]
pub(crate) struct DecodeWqe {
    /// The bytes: plain hex, or a dump of xxd, hexdump -C or gdb's x [default: standard input, also
    /// JSON lines]
    pub(crate) hex: Vec<String>,
    /// The queue that they are from
    #[arg(long, value_enum, default_value_t = Queue::Send)]
    pub(crate) queue: Queue,
    /// Kind of send queue: rc, uc, ud, xrc_send, dci, raw_packet [default: what fits the bytes
    /// best]
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) service: Option<String>,
    /// The bytes are a whole send queue, so that each WQE must be where its index says
    #[arg(long)]
    pub(crate) ring: bool,
    /// Bytes per entry of a receive queue [default: all of them are one]
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES")]
    pub(crate) stride: Option<usize>,
    /// Also explain what the NIC would do
    #[arg(long)]
    pub(crate) explain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Queue {
    /// A send queue
    Send,
    /// A receive queue
    Recv,
    /// A shared receive queue
    Srq,
}

#[derive(Debug, Args)]
#[command(after_help = DECODE_STATUS)]
pub(crate) struct DecodeCqe {
    /// The bytes: plain hex, or a dump of xxd, hexdump -C or gdb's x [default: standard input, also
    /// JSON lines]
    pub(crate) hex: Vec<String>,
    /// Bytes per CQE
    #[arg(long, value_enum, default_value_t = CqeSize::B64)]
    pub(crate) size: CqeSize,
    /// The bytes are a whole completion queue, from which COUNT CQEs have been polled: also mark
    /// the new ones
    #[arg(long, value_name = "COUNT")]
    pub(crate) consumed: Option<u32>,
    /// What the compressed completions of a receive queue carry
    #[arg(long, value_enum, default_value_t = Mini::Hash)]
    pub(crate) mini: Mini,
    /// Also explain what happened, and the likely causes of an error
    #[arg(long)]
    pub(crate) explain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CqeSize {
    /// 64 bytes
    #[value(name = "64")]
    B64,
    /// 128 bytes
    #[value(name = "128")]
    B128,
}

/// The format of mini-CQEs, which the queue was created with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mini {
    /// The receive hash
    Hash,
    /// The checksum
    Checksum,
    /// The checksum and the stride index
    StrideIndex,
}

impl CqeSize {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }
}
