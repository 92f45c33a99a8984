//! The command line of `uverbs`.

#[cfg(test)]
mod documented;
mod inspect;
mod run;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, Args, CommandFactory, Parser, Subcommand, ValueEnum};
pub(crate) use inspect::{Cqe, DecodeCqe, DecodeWqe, Mini, Queue, Wqe};
pub(crate) use run::Run;
use uverbs::soft::wire::HostAddress;

/// TCP port of the out-of-band connection of `pingpong`.
pub(crate) const PINGPONG_PORT: u16 = 18515;
/// TCP port of the out-of-band connection of `transfer`.
pub(crate) const TRANSFER_PORT: u16 = 18516;
/// TCP port of the out-of-band connection of `perf`.
pub(crate) const PERF_PORT: u16 = 18517;

/// The exit status of most subcommands.
const STATUS: &str = "Exit status: 0 success; 1 a failure of device, peer, file or contents; \
    2 a command line or an input that cannot be right. The help of run, replay, wqe decode and cqe \
    decode has theirs; doctor --check ends with 1 if a setting is worth changing.";

/// RDMA verbs on NVIDIA ConnectX (mlx5) devices, or on the built-in software ConnectX.
#[derive(Debug, Parser)]
#[command(name = "uverbs", version, propagate_version = true, after_help = STATUS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The grammar. Options accept negative numbers as values, so that the error for `--port -1`
    /// gives the valid range instead of an unknown option.
    pub(crate) fn grammar() -> clap::Command {
        with_negative_numbers(Self::command())
    }
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &Arg| !arg.is_positional() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the RDMA devices of this machine
    Devices(Devices),
    /// Show a device: limits, ports, GIDs, and what is missing on this machine
    Info(Info),
    /// Show settings of this machine that slow down a polling program, and how to change them
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
    /// Timestamps are the times at which the device received the frames, in nanoseconds. Other
    /// programs still get their frames if the rule is `sniffer`, or a GROUP:PORT that they use,
    /// too. A device of the kernel needs CAP_NET_RAW.
    ///
    /// The rules:
    ///   sniffer           copies of all frames, received and sent
    ///   GROUP:PORT        a multicast line; GROUP:PORT@VLAN with this VLAN tag
    ///   udp:PORT          packets to a port, which then no longer reach the kernel
    ///   tcp:PORT
    ///   leftovers         frames that neither a rule nor the kernel takes
    ///
    /// SIGINT and SIGTERM end the recording with a complete file, whose end has the numbers of
    /// frames received and dropped. A full disk ends the recording with status 1; what was written
    /// before is kept.
    #[command(verbatim_doc_comment)]
    Capture(Capture),
    /// Send the frames of a recording, at their times or at a rate
    ///
    /// The recording is a pcap or pcapng file of either byte order, as `uverbs capture`, tcpdump
    /// and Wireshark write them. Frames are sent as they were recorded, so their checksums and
    /// addresses must be right for the receiver. A device of the kernel needs CAP_NET_RAW.
    ///
    /// Each frame is due at its own time: a late frame does not delay those after it. The report
    /// shows how late frames were. Frames that were not recorded in full are skipped, and counted.
    ///
    /// Exit status: 0; 1 if the device failed or the file cannot be read; 2 if it is not a
    /// recording.
    Replay(Replay),
    /// Run an unmodified libibverbs program on the software ConnectX
    ///
    /// The program's own libibverbs and libmlx5 use a software ConnectX inside its process: no RDMA
    /// hardware, kernel module or privilege is needed. Programs on this machine reach each other,
    /// and programs that use the uverbs crate, at loopback addresses 127.18.y.z.
    ///
    /// It does not work for statically linked programs, and for programs that make system calls
    /// without the C library.
    ///
    /// Exit status: the program's, or 128 plus the signal's number if a signal ended it; 2 if there
    /// is no such program or an option is wrong; 1 if this command itself failed, with a message
    /// that begins with `uverbs: `.
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
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Info {
    /// The device's name; `soft` is the software ConnectX [default: every kernel device, else soft]
    pub(crate) device: Option<String>,
    /// Show instead which device reaches ADDRESS, a host's address or name, or why none does
    #[arg(long, value_name = "ADDRESS", conflicts_with = "root")]
    pub(crate) to: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Use the sys and dev directories below DIR instead of the machine's own
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub(crate) root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The kernel's name of a device; `soft` for no device, only the machine [default: every kernel
    /// device]
    pub(crate) device: Option<String>,
    /// The processors that poll, like 2 or 2,4-7 [default: the isolated ones]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,
    /// Exit with status 1 if a setting is worth changing
    #[arg(long)]
    pub(crate) check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Use the sys and proc directories below DIR instead of the machine's own
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub(crate) root: Option<PathBuf>,
}

/// The device, and which of its addresses to use.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceChoice {
    /// The device's name; `soft` is the software ConnectX [default: the first mlx5 device that
    /// works, or soft if the kernel has none; capture and replay use soft only if it is named]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Index into the port's GID table [default: chosen as `uverbs info` says]
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u8>,
    /// Use the software device with this address of any interface of this machine (IPv6 link-local:
    /// fe80::1%eth0); packets are sent as RoCE v2 over UDP [default: UVERBS_SOFT_ADDRESS, else a
    /// free one of 127.18.0.0/16, which only programs on this machine reach]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<HostAddress>,
}

/// The code that both ends must have.
#[derive(Debug, Clone, Args)]
pub(crate) struct CodeChoice {
    /// The code that both ends must have. Other users of the machine can see it, unless UVERBS_CODE
    /// sets it; observers of the network can guess a short code [default: the listening end
    /// generates one and prints it]
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

/// Options of both ends of a measurement or pingpong.
#[derive(Debug, Clone, Args)]
pub(crate) struct PairOptions {
    /// Listen for the other end, on loopback unless ADDRESS is given; the other end chooses the
    /// test
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1", value_parser = own_address)]
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
    #[arg(long, default_value_t = PINGPONG_PORT)]
    pub(crate) port: u16,
    /// The program at the other end
    #[arg(long, value_enum, default_value_t = Peer::Uverbs)]
    pub(crate) peer: Peer,
    /// Bytes in a message [default: 64, with --peer ibv 4096; atomics have 8]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(crate) size: Option<u32>,
    /// Number of round trips [default: 10000, with --peer ibv 1000; both ends need the same]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iters: Option<u64>,
    /// The operation that carries the messages
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub(crate) op: Op,
    /// Poll for completions (default)
    #[arg(long, conflicts_with = "events")]
    pub(crate) poll: bool,
    /// Sleep until a completion event instead of polling (a plain write causes no event at its
    /// receiver, so writes are always polled for)
    #[arg(long)]
    pub(crate) events: bool,
    #[command(flatten)]
    pub(crate) pair: PairOptions,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// One message at a time: half the round trip of a send or write, the full round trip of a read
    /// or atomic
    Lat,
    /// As many messages as the queues can hold
    Bw,
    /// Ethernet frames without the kernel's network stack: half round trips, a fixed rate, bursts,
    /// from a frame's arrival to its answer's departure by the device's clock, cold and warm sends,
    /// steering rules
    Frames,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Perf {
    /// What to measure
    #[arg(
        value_enum,
        value_name = "lat|bw|frames",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    pub(crate) measure: Option<Measure>,
    /// The listening end's host name or address [default: run both ends here]
    pub(crate) host: Option<String>,
    /// TCP port for the exchange of addresses; 0 lets the listening end choose one, which it prints
    #[arg(long, default_value_t = PERF_PORT)]
    pub(crate) port: u16,
    /// Latency and bandwidth: the operation; atomic is fetch-and-add
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub(crate) op: Op,
    /// Bytes in a message; several, separated by commas; or `all` for the powers of two from 2
    /// bytes to 8 MiB [default: 64; atomics have 8]. Frames: one length from 60 to 226
    #[arg(long, value_name = "BYTES")]
    pub(crate) sizes: Option<String>,
    /// Messages of each size (in total at most 4 GiB per size)
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iters: u64,
    /// Bandwidth: queue pairs, each with its own completion queue
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) qps: u32,
    /// Bandwidth: messages outstanding per queue pair [default: 64]. Frames: receives of each queue
    /// [default: 512]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) depth: Option<u32>,
    /// Latency and bandwidth: messages of at most this many bytes are sent inline, in the work
    /// request
    #[arg(long, default_value_t = 60, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=828))]
    pub(crate) inline: u32,
    /// Frames: the fixed rate, in frames per second
    #[arg(long, value_name = "FRAMES", default_value_t = 10_000.0, value_parser = positive)]
    pub(crate) rate: f64,
    /// Frames: the length of a burst
    #[arg(long, value_name = "FRAMES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) burst: u32,
    /// Latency: sleep until a completion event instead of polling
    #[arg(long)]
    pub(crate) events: bool,
    /// Run only on this processor; if both ends run on this machine, the other end uses the next
    /// one
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// Draw the results as an SVG chart
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pair: PairOptions,
}

#[derive(Debug, Args)]
pub(crate) struct Capture {
    /// The file. With --rotate-mib or --rotate-seconds a number is inserted before its extension
    pub(crate) file: PathBuf,
    // No doc comment: rustdoc would take the brackets for a link.
    #[arg(long, value_name = "RULE", default_value = "sniffer")]
    #[arg(help = "Which frames: sniffer, GROUP:PORT[@VLAN], udp:PORT, tcp:PORT or leftovers")]
    pub(crate) rule: crate::capture::Rule,
    /// Join the rule's group on the network device with this address (IGMP)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) join: Option<IpAddr>,
    /// End after this many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub(crate) seconds: Option<f64>,
    /// Record the first BYTES of each frame
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) snap: Option<u32>,
    /// Begin a new file after this many MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) rotate_mib: Option<u64>,
    /// Begin a new file after this time
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub(crate) rotate_seconds: Option<f64>,
    /// Keep only the last N files
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Replace files that exist already
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// The number of receives: the longest burst that is recorded without loss while the disk is
    /// busy
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub(crate) depth: u32,
    /// Bytes of each buffer: longer frames are dropped, and counted
    #[arg(long, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=16384))]
    pub(crate) frame_bytes: u32,
    /// Take times from the device's PTP clock, if it has real-time timestamps, instead of
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
    /// Send this many frames per second, instead of at the recorded times
    #[arg(long, value_name = "FRAMES", value_parser = positive, conflicts_with_all = ["speed", "fast"])]
    pub(crate) rate: Option<f64>,
    /// Send this many times faster than recorded
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive, conflicts_with = "fast")]
    pub(crate) speed: f64,
    /// Send as fast as the device accepts frames
    #[arg(long)]
    pub(crate) fast: bool,
    /// Send the recording this many times
    #[arg(long = "loop", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) loops: u64,
    /// End after this many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Frames that may be outstanding
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) depth: u32,
    #[command(flatten)]
    pub(crate) choice: DeviceChoice,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number above 0 and at most a billion.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| "it must be a number above 0 and at most a billion".to_owned())
}

/// A directory that exists.
fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err("it is not a directory".to_owned()) }
}

/// An address to listen on.
fn own_address(text: &str) -> Result<IpAddr, String> {
    let forms = "0.0.0.0 is every IPv4 address of this machine, :: every address";
    text.parse().map_err(|_| format!("it is not an IP address ({forms})"))
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
    /// Address to listen on: 0.0.0.0 stands for every IPv4 address of this machine, :: for every
    /// address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = own_address)]
    pub(crate) listen: IpAddr,
    /// TCP port to listen on; 0 lets the system choose one, which is printed
    #[arg(long, default_value_t = TRANSFER_PORT)]
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

// One list, because clap would not accept options between a Vec and a HOST after it.
#[derive(Debug, Args)]
#[command(override_usage = "uverbs transfer send [OPTIONS] <FILE>... <HOST>")]
pub(crate) struct TransferSend {
    /// The files, and last the receiver's host name or address
    #[arg(num_args = 1.., required = true, value_names = ["FILE", "HOST"])]
    pub(crate) files_and_host: Vec<PathBuf>,
    /// The receiver's TCP port
    #[arg(long, default_value_t = TRANSFER_PORT)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::grammar().debug_assert();
    }
}
