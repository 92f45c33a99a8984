//! The other end: a thread of this process, or another process. It gets its orders over a TCP
//! connection.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};

use uverbs::soft::SoftDevice;
use uverbs::{Context, Device, Endpoint};

use crate::link::{Case, Link, Transport};
use crate::rdma::Rdma;
use crate::tcp::Tcp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A thread of this process, on the same device.
    OneDevice,
    /// A thread of this process, on another device.
    TwoDevices,
    /// Another process.
    Process,
}

impl Place {
    pub(crate) const ALL: [Self; 3] = [Self::OneDevice, Self::TwoDevices, Self::Process];
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneDevice => "in process, one device",
            Self::TwoDevices => "in process, two devices",
            Self::Process => "two processes",
        })
    }
}

/// Lines of text to and from the other end.
struct Control {
    reader: BufReader<TcpStream>,
}

impl Control {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self { reader: BufReader::new(stream) }
    }

    fn send_line(&mut self, line: &str) {
        writeln!(self.reader.get_mut(), "{line}").expect("the other end listens");
    }

    /// The next line; `None` at the end.
    fn read_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line).expect("a line of the other end");
        (count > 0).then(|| line.trim_end().to_owned())
    }

    fn exchange(&mut self, own: &Endpoint) -> Endpoint {
        let text: String = own.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.send_line(&text);
        let peer = self.read_line().expect("an endpoint");
        let byte =
            |at: usize| u8::from_str_radix(&peer[2 * at..2 * at + 2], 16).expect("hexadecimal");
        Endpoint::from_bytes(&std::array::from_fn(byte)).expect("an endpoint")
    }

    fn rdma(&mut self, context: &Context, case: Case) -> Box<dyn Link> {
        let mut link = Rdma::new(context, case).expect("a queue pair");
        let peer = self.exchange(&link.endpoint());
        link.connect(&peer).expect("connected");
        // Both ends are connected before either sends.
        self.send_line("ready");
        self.read_line().expect("readiness");
        Box::new(link)
    }
}

fn own_device() -> Context {
    let soft = SoftDevice::named("soft0").expect("a software device");
    Device::from_soft(soft).open().expect("it opens")
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

fn connect(port: u16) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a listening partner")
}

/// Runs the orders of the client at `port` until it closes the connection.
fn serve(port: u16, context: &Context) {
    let mut control = Control::new(connect(port));
    while let Some(line) = control.read_line() {
        let case: Case = line.parse().expect("a case");
        let mut link: Box<dyn Link> = match case.transport {
            Transport::Rdma => control.rdma(context, case),
            Transport::Tcp => {
                let (listener, port) = listen();
                control.send_line(&port.to_string());
                Box::new(Tcp::new(listener.accept().expect("a client").0, case))
            }
        };
        case.follow(&mut *link);
        // The client says that it has received the last messages of this end.
        control.read_line();
    }
}

/// A process that is the other end.
pub(crate) fn run(port: u16) {
    serve(port, &own_device());
}

/// The measuring end.
pub(crate) struct Client {
    place: Place,
    context: Context,
    /// The field that is dropped first. Closing it ends the other end, which is then waited for.
    control: Option<Control>,
    thread: Option<JoinHandle<()>>,
    child: Option<Child>,
}

impl Client {
    pub(crate) fn start(place: Place) -> Self {
        let (listener, port) = listen();
        let context = own_device();
        let (mut thread, mut child) = (None, None);
        match place {
            Place::OneDevice => {
                let context = context.clone();
                thread = Some(thread::spawn(move || serve(port, &context)));
            }
            Place::TwoDevices => thread = Some(thread::spawn(move || serve(port, &own_device()))),
            Place::Process => {
                let program = std::env::current_exe().expect("this program");
                let mut command = Command::new(program);
                child = Some(
                    command.args(["--partner", &port.to_string()]).spawn().expect("a process"),
                );
            }
        }
        let control = Some(Control::new(listener.accept().expect("the partner").0));
        Self { place, context, control, thread, child }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Nanoseconds, see [`Case::lead`].
    pub(crate) fn run(&mut self, case: Case) -> f64 {
        let control = self.control.as_mut().expect("not dropped");
        control.send_line(&case.to_string());
        let mut link: Box<dyn Link> = match case.transport {
            Transport::Rdma => control.rdma(&self.context, case),
            Transport::Tcp => {
                let port = control.read_line().expect("a port").parse().expect("a port");
                Box::new(Tcp::new(connect(port), case))
            }
        };
        let time = case.lead(&mut *link);
        control.send_line("over");
        time
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.control = None;
        self.thread.take().map(JoinHandle::join);
        self.child.as_mut().map(Child::wait);
    }
}
