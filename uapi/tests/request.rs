//! Requests: the bytes that the builder lays out, and what the view makes of them and of garbage.

use uverbs_uapi::enums::DriverId;
use uverbs_uapi::ioctl::{AttrFlags, IoctlAttr, IoctlHdr};
use uverbs_uapi::mlx5::{self, object::uar};
use uverbs_uapi::objects::device::{self, get_context, invoke_write};
use uverbs_uapi::objects::{self, AttrId, AttrKind, ObjectId, cq, qp};
use uverbs_uapi::request::{CAPACITY, Request, TooLong};
use uverbs_uapi::view::{IoctlView, LONGEST, Payload, ViewError};
use uverbs_uapi::write::WriteCmd;
use uverbs_uapi::write::pd::{AllocPd, AllocPdResp, DeallocPd};
use zerocopy::{FromBytes, IntoBytes};

const HEADER: usize = size_of::<IoctlHdr>();
const ATTRIBUTE: usize = size_of::<IoctlAttr>();

fn attr(bytes: &[u8], index: usize) -> IoctlAttr {
    IoctlAttr::read_from_bytes(&bytes[HEADER + index * ATTRIBUTE..][..ATTRIBUTE]).unwrap()
}

#[test]
fn bytes_of_a_uar_allocation() {
    let (mut offset, mut length, mut page) = (0u64, 0u32, 0u32);
    let expected_offset = (&raw const offset).expose_provenance() as u64;
    let mut request = Request::<uar::alloc::Call>::new(DriverId::MLX5);
    request.new_handle(uar::alloc::HANDLE);
    request.constant(uar::alloc::TYPE, 1u32);
    request.output(uar::alloc::MMAP_OFFSET, &mut offset);
    request.output(uar::alloc::MMAP_LENGTH, &mut length);
    request.output(uar::alloc::PAGE_ID, &mut page);

    let bytes = request.as_bytes();
    assert_eq!(bytes.len(), 24 + 5 * 16);
    let header = &[104u16, 0x1008, 0x1000, 5];
    assert_eq!(&bytes[..8], header.as_bytes());
    assert_eq!(&bytes[8..24], [0u64, 1].as_bytes());
    let kind = attr(bytes, 1);
    assert_eq!((kind.attr_id.0, kind.len, kind.data), (0x1001, 8, 1));
    assert_eq!(kind.flags, AttrFlags::MANDATORY);
    let out = attr(bytes, 2);
    assert_eq!((out.attr_id.0, out.len, out.data), (0x1002, 8, expected_offset));
}

#[test]
fn inputs_of_up_to_eight_bytes_are_inline() {
    let cap = uverbs_uapi::write::qp::QpCap { max_send_wr: 9, ..Default::default() };
    let mut request = Request::<qp::create::Call>::new(DriverId::MLX5);
    request.value(qp::create::USER_HANDLE, 0x1122_3344_5566_7788u64);
    request.input(qp::create::CAP, &cap);
    request.input_bytes(qp::create::UHW_IN, &[1, 2, 3]).unwrap().optional();
    let bytes = request.as_bytes();
    assert_eq!(attr(bytes, 0).data, 0x1122_3344_5566_7788);
    let pointed = attr(bytes, 1);
    assert_eq!(pointed.len, 20);
    assert_eq!(pointed.data, (&raw const cap).expose_provenance() as u64);
    let small = attr(bytes, 2);
    assert_eq!((small.len, small.data.to_ne_bytes()), (3, [1, 2, 3, 0, 0, 0, 0, 0]));
    assert_eq!(small.flags, AttrFlags::empty());
}

#[test]
fn handles_and_file_descriptors_have_no_length() {
    let mut request = Request::<cq::create::Call>::new(DriverId::MLX5);
    request.fd(cq::create::COMP_CHANNEL, -1);
    request.fd(cq::create::EVENT_FD, 5);
    let bytes = request.as_bytes();
    assert_eq!((attr(bytes, 0).len, attr(bytes, 0).data), (0, u64::MAX));
    assert_eq!((attr(bytes, 1).len, attr(bytes, 1).data), (0, 5));
}

#[test]
fn storing_twice_replaces() {
    let mut request = Request::<cq::create::Call>::new(DriverId::MLX5);
    for entries in 0..2 * CAPACITY as u32 {
        request.value(cq::create::CQE, entries);
    }
    let view = IoctlView::parse(request.as_bytes()).unwrap();
    assert_eq!(view.attributes().count(), 1);
    assert_eq!(view.get(cq::create::CQE).unwrap().value(), Some(2 * CAPACITY as u64 - 1));
}

#[test]
fn missing_names_what_the_kernel_requires() {
    let mut entries = 0u32;
    let mut request = Request::<cq::create::Call>::new(DriverId::MLX5);
    request.value(cq::create::CQE, 1u32);
    let names: Vec<_> = request.missing().map(|info| info.name).collect();
    assert_eq!(names, ["HANDLE", "USER_HANDLE", "COMP_VECTOR", "RESP_CQE"]);
    request.output(cq::create::RESP_CQE, &mut entries);
    assert_eq!(request.missing().count(), 3);
}

#[test]
fn a_write_command_travels_in_its_wrapper() {
    let (core, mut response) = (AllocPd::default(), AllocPdResp::default());
    let mut driver = mlx5::AllocPdResp::default();
    let mut request = Request::write(DriverId::MLX5, &core, &mut response);
    request.driver_data(&[], driver.as_mut_bytes()).unwrap();
    let view = IoctlView::parse(request.as_bytes()).unwrap();
    assert_eq!(view.write_command(), Some(WriteCmd::ALLOC_PD));
    let lengths: Vec<_> = view.attributes().map(|a| (a.info().unwrap().name, a.len())).collect();
    assert_eq!(lengths, [("WRITE_CMD", 8), ("CORE_IN", 8), ("CORE_OUT", 4), ("UHW_OUT", 4)]);
    assert!(view.to_string().starts_with("device.invoke_write(ALLOC_PD) WRITE_CMD=0x3"));
}

#[test]
fn a_command_without_answer_has_no_output() {
    let core = DeallocPd { pd_handle: 3 };
    let mut nothing = ();
    let request = Request::write(DriverId::MLX5, &core, &mut nothing);
    let view = IoctlView::parse(request.as_bytes()).unwrap();
    assert!(view.get(invoke_write::CORE_OUT).is_none());
    assert_eq!(view.get(invoke_write::CORE_IN).unwrap().value(), Some(3));
}

#[test]
fn more_than_an_attribute_can_say_is_refused() {
    let long = vec![0u8; 65536];
    let mut request = Request::<get_context::Call>::new(DriverId::MLX5);
    let error = request.input_bytes(get_context::UHW_IN, &long).err();
    assert_eq!(error, Some(TooLong { length: 65536 }));
    assert!(request.input_bytes(get_context::UHW_IN, &long[1..]).is_ok());
}

/// The kernel writes through the addresses alone. This test does the same, for one answer of each
/// kind.
#[test]
fn answers_come_back() {
    let mut entries = 0u32;
    let mut request = Request::<cq::create::Call>::new(DriverId::MLX5);
    request.new_handle(cq::create::HANDLE);
    request.output(cq::create::RESP_CQE, &mut entries);
    assert_eq!(request.created(cq::create::HANDLE), None);
    let handle_at = IoctlView::parse(request.as_bytes()).unwrap().find(AttrId(0)).unwrap().offset();
    let output = attr(request.as_bytes(), 1).data as usize;
    let start = request.as_mut_ptr();
    // SAFETY: attribute 0 is inside the request, and its data word is 8 bytes in; `output` is the
    // address of `entries`, which the request borrows exclusively.
    unsafe {
        start.add(handle_at + 8).cast::<u64>().write_unaligned(77);
        std::ptr::with_exposed_provenance_mut::<u32>(output).write(512);
    }
    request.mark_executed();
    assert_eq!(request.created(cq::create::HANDLE), Some(77));
    assert_eq!(entries, 512);
}

#[test]
fn bad_headers_are_told_apart() {
    let parse = |bytes: &[u8]| IoctlView::parse(bytes).err();
    assert_eq!(parse(&[0; 23]), Some(ViewError::Truncated { needed: 24, given: 23 }));
    let mut header = IoctlHdr { length: 24, ..Default::default() };
    assert_eq!(parse(header.as_bytes()), None);
    header.num_attrs = 1;
    assert_eq!(parse(header.as_bytes()), Some(ViewError::Length { length: 24, num_attrs: 1 }));
    header.length = 40;
    assert_eq!(parse(header.as_bytes()), Some(ViewError::Truncated { needed: 40, given: 24 }));
    let reserved = IoctlHdr { length: 24, reserved2: 1, ..Default::default() };
    assert_eq!(parse(reserved.as_bytes()), Some(ViewError::Reserved));
    // 4096 attributes make a length that only 16 bits of arithmetic would accept.
    let wrapped = IoctlHdr { length: 24, num_attrs: 4096, ..Default::default() };
    assert_eq!(parse(wrapped.as_bytes()), Some(ViewError::Length { length: 24, num_attrs: 4096 }));
    let longest = IoctlHdr { length: 4088, num_attrs: 254, ..Default::default() };
    assert!(IoctlView::length_of(&longest).is_ok_and(|length| length <= LONGEST));
    let longer = IoctlHdr { length: 4104, num_attrs: 255, ..Default::default() };
    assert!(IoctlView::length_of(&longer).is_err());
}

#[test]
fn duplicates_and_unknown_attributes() {
    let mut bytes = IoctlHdr { length: 72, num_attrs: 3, ..Default::default() }.as_bytes().to_vec();
    for (id, len) in [(2, 8), (0x4321, 9), (2, 5)] {
        let attr = IoctlAttr { attr_id: AttrId(id), len, data: 1, ..Default::default() };
        bytes.extend_from_slice(attr.as_bytes());
    }
    let view = IoctlView::parse(&bytes).unwrap();
    assert_eq!(view.duplicate(), Some(AttrId(2)));
    let unknown = view.find(AttrId(0x4321)).unwrap();
    assert!(unknown.info().is_none());
    assert_eq!(unknown.payload(), Payload::Input { address: 1, len: 9 });
    assert_eq!(view.attributes().last().unwrap().value(), None);
}

/// Xorshift; the seed is in the failing assertion.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Random bytes, with a header that is usually right so that the attributes are reached.
#[test]
fn no_bytes_make_the_view_panic() {
    for seed in 1..2_000u64 {
        let mut state = seed;
        let num_attrs = (random(&mut state) % 40) as u16;
        let mut bytes: Vec<u8> =
            (0..HEADER + 40 * ATTRIBUTE).map(|_| (random(&mut state) >> 32) as u8).collect();
        if seed % 5 != 0 {
            let hdr = IoctlHdr {
                length: (HEADER + usize::from(num_attrs) * ATTRIBUTE) as u16,
                object_id: ObjectId((random(&mut state) % 20) as u16),
                num_attrs,
                driver_id: DriverId::MLX5,
                ..Default::default()
            };
            bytes[..HEADER].copy_from_slice(hdr.as_bytes());
        }
        let parsed = IoctlView::parse(&bytes);
        assert_eq!(parsed.is_ok(), seed % 5 != 0, "seed {seed}");
        if let Ok(view) = parsed {
            assert_eq!(view.attributes().count(), usize::from(num_attrs), "seed {seed}");
            assert!(!view.to_string().is_empty());
            view.duplicate();
        }
    }
}

#[test]
fn names_are_found_in_both_namespaces() {
    assert_eq!(cq::OBJECT.to_string(), "cq");
    assert_eq!(uar::OBJECT.to_string(), "uar");
    assert_eq!(ObjectId(0x1fff).to_string(), "0x1fff");
    let generic =
        objects::find_attribute(DriverId::MLX5, cq::OBJECT, cq::create::METHOD, AttrId(1));
    assert_eq!(generic.unwrap().name, "CQE");
    let added = mlx5::object::cq::create::UAR_INDEX.id();
    let of = |driver| objects::find_attribute(driver, cq::OBJECT, cq::create::METHOD, added);
    assert_eq!(of(DriverId::MLX5).unwrap().name, "UAR_INDEX");
    assert!(of(DriverId::EFA).is_none());
    let port = objects::find_method(DriverId::MLX5, device::OBJECT, device::query_port::METHOD);
    assert_eq!(port.unwrap().c_name, "UVERBS_METHOD_QUERY_PORT");
}

#[test]
fn tables_are_consistent() {
    for object in objects::all(DriverId::MLX5) {
        for method in object.methods {
            let find = |id| objects::find_attribute(DriverId::MLX5, object.id, method.id, id);
            for attr in method.attributes {
                assert_eq!(find(attr.id).unwrap().c_name, attr.c_name, "{}", attr.c_name);
            }
            let new = method.attributes.iter().filter(|attr| attr.kind == AttrKind::NewHandle);
            assert!(new.count() <= 1, "{}", method.c_name);
        }
    }
}
