//! Flow tables that firmware commands of a program create.

use uverbs_soft_adapter::firmware::bits::Field;
use uverbs_soft_adapter::firmware::layout::command::{header, object};
use uverbs_soft_adapter::firmware::layout::ethernet::{
    create_flow_group_in, flow_table_context, modify_flow_table_in,
};
use uverbs_uapi::enums::DriverId;
use uverbs_uapi::mlx5::object::devx_obj;
use uverbs_uapi::request::Request;

use super::bench::*;
use crate::locking::lock;

const TABLE_CONTEXT: usize = 0xc0;
/// Offset in a context request of the flag for firmware commands.
const DEVX: usize = 8;

fn command(opcode: u64, fields: &[(Field, u64)]) -> [u8; 64] {
    let mut input = [0; 64];
    header::OPCODE.set(&mut input, opcode);
    fields.iter().for_each(|(field, value)| field.set(&mut input, *value));
    input
}

/// A context with firmware commands.
fn client(device: &super::super::SoftDevice) -> Client {
    let client = Client::bare(device);
    let mut request = context_request();
    request[DEVX] = 1;
    client.get_context(&request, &mut [0; 72]).unwrap();
    client
}

/// Creates a table of a level. Returns its handle and its number.
fn create_table(client: &Client, level: u64) -> (u32, u32) {
    use devx_obj::create::*;
    let input = command(0x930, &[(flow_table_context::LEVEL.at(TABLE_CONTEXT), level)]);
    let mut answer = [0; 16];
    let mut request = Request::<Call>::new(DriverId::MLX5);
    request.new_handle(HANDLE);
    request.input_bytes(CMD_IN, &input).unwrap();
    request.output_bytes(CMD_OUT, &mut answer).unwrap();
    client.run(&mut request).unwrap();
    let handle = request.created(HANDLE).unwrap();
    (handle, object::NUMBER.get32(&answer))
}

/// Makes a table forward frames that match no entry to another table.
fn forward(client: &Client, (handle, number): (u32, u32), next: u32) {
    use devx_obj::modify::*;
    let input = command(
        0x93c,
        &[
            (create_flow_group_in::TABLE_ID, number.into()),
            (modify_flow_table_in::MODIFY_FIELD_SELECT, 1),
            (flow_table_context::TABLE_MISS_ACTION.at(TABLE_CONTEXT), 1),
            (flow_table_context::TABLE_MISS_ID.at(TABLE_CONTEXT), next.into()),
        ],
    );
    let mut answer = [0; 16];
    let mut request = Request::<Call>::new(DriverId::MLX5);
    request.handle(HANDLE, handle);
    request.input_bytes(CMD_IN, &input).unwrap();
    request.output_bytes(CMD_OUT, &mut answer).unwrap();
    client.run(&mut request).unwrap();
}

/// The later table would be destroyed first, but the earlier one forwards to it.
#[test]
fn closing_a_file_destroys_tables_that_earlier_ones_lead_to() {
    let device = builder().build().unwrap();
    let tables = || {
        let counts = lock(&device.shared.firmware).counts();
        counts.iter().find(|(name, _)| *name == "flow tables").unwrap().1
    };
    let client = client(&device);
    let tables_made = [1, 2, 3].map(|level| create_table(&client, level));
    forward(&client, tables_made[0], tables_made[1].1);
    forward(&client, tables_made[1], tables_made[2].1);
    assert_eq!(tables(), 3);
    drop(client);
    assert_eq!(tables(), 0);
}
