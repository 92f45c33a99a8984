//! On-demand paging: regions that are not pinned, and advice about their pages.

use nix::errno::Errno;
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::flags::AccessFlags;
use uverbs_uapi::objects::mr::advise;
use uverbs_uapi::request::Request;
use uverbs_uapi::write::mr::{DeregMr, RegMr, RegMrResp, ReregMr};

use super::bench::*;

const NOWHERE: u64 = 0x1000;
const WRITABLE_ON_DEMAND: AccessFlags = AccessFlags::ON_DEMAND.union(AccessFlags::LOCAL_WRITE);

fn register(client: &Client, pd_handle: u32, start: u64, length: u64) -> Result<RegMrResp, Errno> {
    let access_flags = WRITABLE_ON_DEMAND;
    let command =
        RegMr { start, hca_va: start, length, pd_handle, access_flags, ..RegMr::default() };
    client.write(&command)
}

#[test]
fn on_demand_regions_may_cover_unmapped_memory() {
    let device = builder().locked_memory(0).build().unwrap();
    let client = Client::open(&device);
    let pd = client.alloc_pd();
    assert!(register(&client, pd, NOWHERE, 8192).is_ok(), "neither mapped nor counted as locked");
    assert_eq!(register(&client, pd, NOWHERE, 0).unwrap_err(), Errno::EINVAL);
    assert_eq!(register(&client, pd, u64::MAX - 4095, 4095).unwrap_err(), Errno::EOVERFLOW);
    let all = register(&client, pd, 0, u64::MAX).unwrap();
    let info = device.inspect(|core| core.query_mkey(crate::core::Mkey(all.lkey)).cloned());
    let info = info.unwrap().unwrap();
    assert!(info.on_demand && info.whole_space);
    let shifted = RegMr {
        length: u64::MAX,
        hca_va: 4096,
        pd_handle: pd,
        access_flags: WRITABLE_ON_DEMAND,
        ..RegMr::default()
    };
    assert_eq!(client.write(&shifted).unwrap_err(), Errno::EINVAL, "implicit regions begin at 0");
    assert_eq!(client.write(&DeregMr { mr_handle: all.mr_handle }), Ok(()));
}

#[test]
fn pinned_regions_stay_pinned_unless_they_get_other_memory() {
    let (_device, client) = alone();
    let pd = client.alloc_pd();
    let memory = Memory::pages(1);
    let region = client.reg_mr(pd, memory.at(0), 4096).unwrap();
    let change = |flags: u32, access_flags, start| {
        let flags = uverbs_uapi::flags::ReregMrFlags::from_bits_retain(flags);
        let mr_handle = region.mr_handle;
        let (hca_va, length) = (start, 4096);
        let command =
            ReregMr { mr_handle, flags, start, length, hca_va, access_flags, ..ReregMr::default() };
        client.write(&command).map(drop)
    };
    assert_eq!(change(4, WRITABLE_ON_DEMAND, 0), Err(Errno::EOPNOTSUPP), "access alone");
    assert_eq!(change(5, WRITABLE_ON_DEMAND, NOWHERE), Ok(()), "access and memory");
    assert_eq!(change(4, AccessFlags::ON_DEMAND, 0), Ok(()));
    assert_eq!(change(5, AccessFlags::LOCAL_WRITE, NOWHERE), Err(Errno::EFAULT));
    assert_eq!(change(5, AccessFlags::LOCAL_WRITE, memory.at(0)), Ok(()));
}

#[test]
fn advice_maps_pages_and_reports_invalid_ranges() {
    let (_device, client) = alone();
    let (pd, other) = (client.alloc_pd(), client.alloc_pd());
    let memory = Memory::pages(2);
    let pinned = client.reg_mr(pd, memory.at(0), 4096).unwrap();
    let there = register(&client, pd, memory.at(0), 8192).unwrap();
    let nowhere = register(&client, pd, NOWHERE, 8192).unwrap();
    let read_only = client
        .write(&RegMr {
            start: memory.at(0),
            hca_va: memory.at(0),
            length: 4096,
            pd_handle: pd,
            access_flags: AccessFlags::ON_DEMAND,
            ..RegMr::default()
        })
        .unwrap();
    let ask = |pd: u32, advice: u64, flags: u32, lkey: u32, address: u64, length: u32| {
        let mut sge = [0; 16];
        sge[..8].copy_from_slice(&address.to_ne_bytes());
        sge[8..12].copy_from_slice(&length.to_ne_bytes());
        sge[12..].copy_from_slice(&lkey.to_ne_bytes());
        let mut request = Request::<advise::Call>::new(DriverId::MLX5);
        request.handle(advise::PD_HANDLE, pd);
        request.constant(advise::ADVICE, advice);
        request.flags(advise::FLAGS, flags);
        request.input_bytes(advise::SGE_LIST, &sge).unwrap();
        client.run(&mut request)
    };
    let (prefetch, write, no_fault) = (0, 1, 2);
    for advice in [prefetch, write, no_fault] {
        assert_eq!(ask(pd, advice, 1, there.lkey, memory.at(100), 8000), Ok(()));
    }
    assert_eq!(ask(pd, 3, 1, there.lkey, memory.at(0), 1), Err(Errno::EOPNOTSUPP));
    assert_eq!(ask(pd, write, 1, pinned.lkey, memory.at(0), 1), Err(Errno::ENOENT));
    assert_eq!(ask(other, write, 1, there.lkey, memory.at(0), 1), Err(Errno::EPERM));
    assert_eq!(ask(pd, write, 1, read_only.lkey, memory.at(0), 1), Err(Errno::EPERM));
    assert_eq!(ask(pd, write, 1, there.lkey, memory.at(1), 8192), Err(Errno::EFAULT));
    assert_eq!(ask(pd, write, 1, nowhere.lkey, NOWHERE, 1), Err(Errno::EFAULT));
    assert_eq!(ask(pd, write, 0, nowhere.lkey, NOWHERE, 1), Ok(()), "the fault is not reported");
    assert_eq!(ask(pd, no_fault, 1, nowhere.lkey, NOWHERE, 1), Ok(()));
}
