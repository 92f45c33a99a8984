//! The kinds of requests of each transport: those whose forms in the ring differ.

use uverbs_mlx5::request::{Immediate, Sge};
use uverbs_mlx5::send_queue::{
    AtomicResult, BindWindow, Datagram, DcTarget, Dci, EthernetOffload, EthernetSend,
    EthernetSendHeader, FetchAdd, LocalInvalidate, Nop, RawEthernet, Rc, Read, RunTimeOperation,
    Send, SendImmediate, To, Ud, WindowAccess, WindowType, Write, framed, segmented,
};

use super::requests::{Data, RequestOf, StepForm, Tried, Visitor};

#[derive(Clone, Copy, Debug)]
pub(super) enum RcKind {
    Nop,
    SendInline,
    WriteInline,
    SendSges,
    WriteSges,
    ReadSges,
    SendImmediate,
    FetchAdd,
    LocalInvalidate,
    BindWindow,
    WriteSge,
    SendNothing,
}

impl Tried for Rc {
    type Kind = RcKind;

    const KINDS: &'static [RcKind] = &[
        RcKind::Nop,
        RcKind::SendInline,
        RcKind::WriteInline,
        RcKind::SendSges,
        RcKind::WriteSges,
        RcKind::ReadSges,
        RcKind::SendImmediate,
        RcKind::FetchAdd,
        RcKind::LocalInvalidate,
        RcKind::BindWindow,
        RcKind::WriteSge,
        RcKind::SendNothing,
    ];

    const HAS_RUN_TIME_FORMS: bool = true;

    fn visit<V: Visitor<Self>>(request: &RequestOf<Self>, v: V) -> V::Out {
        let (remote, inline, number) = (request.remote, request.inline(), request.number);
        let (sge, sges) = (request.sge, request.sges.as_slice());
        match request.kind {
            RcKind::Nop => v.visit(Nop, ()),
            RcKind::SendInline => v.visit(Send, inline),
            RcKind::WriteInline => v.visit(Write(remote), inline),
            RcKind::SendSges => v.visit(Send, sges),
            RcKind::WriteSges => v.visit(Write(remote), sges),
            RcKind::ReadSges => v.visit(Read(remote), sges),
            RcKind::SendImmediate => v.visit(SendImmediate(Immediate::from_u32(number)), sge),
            RcKind::FetchAdd => {
                let (address, lkey) = (request.result[0].address(), request.result[0].lkey());
                v.visit(FetchAdd { remote, add: 3 }, AtomicResult { address, lkey })
            }
            RcKind::LocalInvalidate => v.visit(LocalInvalidate(number), ()),
            RcKind::BindWindow => v.visit(bind(number), ()),
            RcKind::WriteSge => v.visit(Write(remote), sge),
            RcKind::SendNothing => v.visit(Send, ()),
        }
    }

    fn run_time_form(request: &RequestOf<Self>) -> Option<(RunTimeOperation<'_>, Data<'_>)> {
        use RunTimeOperation as O;
        let (remote, sges) = (request.remote, Data::Sges(&request.sges));
        match request.kind {
            RcKind::Nop => Some((O::Nop, Data::Sges(&[]))),
            RcKind::SendInline => Some((O::Send, Data::Inline)),
            RcKind::WriteInline => Some((O::Write(remote), Data::Inline)),
            RcKind::SendSges => Some((O::Send, sges)),
            RcKind::WriteSges => Some((O::Write(remote), sges)),
            RcKind::ReadSges => Some((O::Read(remote), sges)),
            RcKind::LocalInvalidate => Some((O::LocalInvalidate(request.number), Data::Sges(&[]))),
            _ => None,
        }
    }

    fn step_form(request: &RequestOf<Self>) -> Option<StepForm<'_>> {
        let (remote, sges) = (request.remote, Data::Sges(&request.sges));
        match request.kind {
            RcKind::SendInline => StepForm::send(Data::Inline),
            RcKind::WriteInline => StepForm::write(remote, Data::Inline),
            RcKind::SendSges => StepForm::send(sges),
            RcKind::WriteSges => StepForm::write(remote, sges),
            RcKind::WriteSge => {
                StepForm::write(remote, Data::Sges(std::slice::from_ref(&request.sge)))
            }
            RcKind::FetchAdd => StepForm::fetch_add(remote, 3, &request.result),
            RcKind::SendNothing => StepForm::send(Data::Sges(&[])),
            _ => None,
        }
    }
}

/// The longest request without data: a change of a key, which the next request is fenced behind.
fn bind(window: u32) -> BindWindow {
    BindWindow {
        window,
        window_type: WindowType::Type2,
        new_rkey: 2,
        lkey: 3,
        address: 4,
        length: 5,
        access: WindowAccess::REMOTE_READ,
        zero_based: false,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum UdKind {
    Nop,
    SendInline,
    SendSges,
    SendSge,
    SendNothing,
}

impl Tried for Ud {
    type Kind = UdKind;

    const KINDS: &'static [UdKind] =
        &[UdKind::Nop, UdKind::SendInline, UdKind::SendSges, UdKind::SendSge, UdKind::SendNothing];

    const HAS_RUN_TIME_FORMS: bool = true;

    fn visit<V: Visitor<Self>>(request: &RequestOf<Self>, v: V) -> V::Out {
        let send = To(Datagram(&request.av), Send);
        match request.kind {
            UdKind::Nop => v.visit(Nop, ()),
            UdKind::SendInline => v.visit(send, request.inline()),
            UdKind::SendSges => v.visit(send, request.sges.as_slice()),
            UdKind::SendSge => v.visit(send, request.sge),
            UdKind::SendNothing => v.visit(send, ()),
        }
    }

    fn destination(request: &RequestOf<Self>) -> Option<Datagram<'_>> {
        Some(Datagram(&request.av))
    }

    fn run_time_form(request: &RequestOf<Self>) -> Option<(RunTimeOperation<'_>, Data<'_>)> {
        match request.kind {
            UdKind::SendInline => Some((RunTimeOperation::Send, Data::Inline)),
            UdKind::SendSges => Some((RunTimeOperation::Send, Data::Sges(&request.sges))),
            UdKind::SendNothing => Some((RunTimeOperation::Send, Data::Sges(&[]))),
            UdKind::Nop | UdKind::SendSge => None,
        }
    }

    fn step_form(request: &RequestOf<Self>) -> Option<StepForm<'_>> {
        match request.kind {
            UdKind::SendInline => StepForm::send(Data::Inline),
            UdKind::SendSges => StepForm::send(Data::Sges(&request.sges)),
            UdKind::SendSge => StepForm::send(Data::Sges(std::slice::from_ref(&request.sge))),
            UdKind::SendNothing => StepForm::send(Data::Sges(&[])),
            UdKind::Nop => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DcKind {
    SendInline,
    SendSges,
    SendNothing,
    WriteInline,
    WriteSges,
    FetchAdd,
}

impl Tried for Dci {
    type Kind = DcKind;

    const KINDS: &'static [DcKind] = &[
        DcKind::SendInline,
        DcKind::SendSges,
        DcKind::SendNothing,
        DcKind::WriteInline,
        DcKind::WriteSges,
        DcKind::FetchAdd,
    ];

    const HAS_RUN_TIME_FORMS: bool = true;

    fn visit<V: Visitor<Self>>(request: &RequestOf<Self>, v: V) -> V::Out {
        let (to, remote) = (DcTarget(&request.av), request.remote);
        let (inline, sges) = (request.inline(), request.sges.as_slice());
        match request.kind {
            DcKind::SendInline => v.visit(To(to, Send), inline),
            DcKind::SendSges => v.visit(To(to, Send), sges),
            DcKind::SendNothing => v.visit(To(to, Send), ()),
            DcKind::WriteInline => v.visit(To(to, Write(remote)), inline),
            DcKind::WriteSges => v.visit(To(to, Write(remote)), sges),
            DcKind::FetchAdd => {
                let (address, lkey) = (request.result[0].address(), request.result[0].lkey());
                v.visit(To(to, FetchAdd { remote, add: 3 }), AtomicResult { address, lkey })
            }
        }
    }

    fn destination(request: &RequestOf<Self>) -> Option<Datagram<'_>> {
        Some(Datagram(&request.av))
    }

    fn run_time_form(request: &RequestOf<Self>) -> Option<(RunTimeOperation<'_>, Data<'_>)> {
        use RunTimeOperation as O;
        let (remote, sges) = (request.remote, Data::Sges(&request.sges));
        match request.kind {
            DcKind::SendInline => Some((O::Send, Data::Inline)),
            DcKind::SendSges => Some((O::Send, sges)),
            DcKind::SendNothing => Some((O::Send, Data::Sges(&[]))),
            DcKind::WriteInline => Some((O::Write(remote), Data::Inline)),
            DcKind::WriteSges => Some((O::Write(remote), sges)),
            DcKind::FetchAdd => None,
        }
    }

    fn step_form(request: &RequestOf<Self>) -> Option<StepForm<'_>> {
        let (remote, sges) = (request.remote, Data::Sges(&request.sges));
        match request.kind {
            DcKind::SendInline => StepForm::send(Data::Inline),
            DcKind::SendSges => StepForm::send(sges),
            DcKind::SendNothing => StepForm::send(Data::Sges(&[])),
            DcKind::WriteInline => StepForm::write(remote, Data::Inline),
            DcKind::WriteSges => StepForm::write(remote, sges),
            DcKind::FetchAdd => StepForm::fetch_add(remote, 3, &request.result),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EthernetKind {
    Nop,
    Send,
    SendHeader,
    SendHeaderInline,
    Segmented,
    Frame,
    FrameSge,
}

impl Tried for RawEthernet {
    type Kind = EthernetKind;

    const KINDS: &'static [EthernetKind] = &[
        EthernetKind::Nop,
        EthernetKind::Send,
        EthernetKind::SendHeader,
        EthernetKind::SendHeaderInline,
        EthernetKind::Segmented,
        EthernetKind::Frame,
        EthernetKind::FrameSge,
    ];

    const HAS_RUN_TIME_FORMS: bool = false;

    fn visit<V: Visitor<Self>>(request: &RequestOf<Self>, v: V) -> V::Out {
        let (inline, sges) = (request.inline(), request.sges.as_slice());
        let offload = EthernetOffload { metadata: request.number, ..Default::default() };
        let with_header = EthernetSendHeader(offload, &[5; 18]);
        let start = frame_start(&request.data);
        match request.kind {
            EthernetKind::Nop => v.visit(Nop, ()),
            EthernetKind::Send => v.visit(EthernetSend(offload), sges),
            EthernetKind::SendHeader => v.visit(with_header, sges),
            EthernetKind::SendHeaderInline => v.visit(with_header, inline),
            EthernetKind::Segmented => {
                let (operation, data) = segmented(offload, 1460, &start, sges);
                v.visit(operation, data)
            }
            EthernetKind::Frame => {
                let (operation, data) = framed(offload, &start, ());
                v.visit(operation, data)
            }
            EthernetKind::FrameSge => {
                let (operation, data) = framed(offload, &start, Sge::new(1, 2, 3));
                v.visit(operation, data)
            }
        }
    }
}

/// The inline start of a frame: as long as a header at least, and not longer than `max_inline`.
fn frame_start(data: &[u8]) -> Vec<u8> {
    [&[7; 18][..], &data[..data.len().min(180)]].concat()
}
