//! Connections in tokio tasks.

use std::time::Duration;

use tokio::time::timeout;
use uverbs::cm::{Channel, Connector, EventKind, Listener, PortSpace};
use uverbs::tokio::{AsyncCmChannel, AsyncListener, connect, wait_disconnected};

use crate::{PATIENCE, device_and_address};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_connect_and_accept() {
    const CLIENTS: usize = 20;
    let (context, address) = device_and_address();
    let listener = Listener::builder().context(&context).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let mut listener = AsyncListener::new(listener).unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let connector = Connector::new().context(&context);
            tokio::spawn(async move { connect(&connector, to).await.unwrap() })
        })
        .collect();
    let mut servers = Vec::new();
    for _ in 0..CLIENTS {
        servers.push(timeout(PATIENCE, listener.accept()).await.unwrap().unwrap());
    }
    for client in clients {
        let client = client.await.unwrap();
        let peer = client.link.local_address().unwrap();
        assert!(servers.iter().any(|server| server.link.peer_address().unwrap() == peer));
    }
}

#[tokio::test]
async fn dropping_the_future_of_a_connect_withdraws_the_request() {
    let (context, address) = device_and_address();
    let listener = Listener::builder().context(&context).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let connector = Connector::new().context(&context);
    let soon = Duration::from_millis(10);
    assert!(timeout(soon, connect(&connector, to)).await.is_err());
    let mut listener = AsyncListener::new(listener).unwrap();
    let client = tokio::spawn(async move { connect(&connector, to).await.unwrap() });
    let server = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let client = client.await.unwrap();
    assert_eq!(server.link.peer_address().unwrap(), client.link.local_address().unwrap());
}

#[tokio::test]
async fn events_wake_a_task() {
    let (context, address) = device_and_address();
    let channel = AsyncCmChannel::new(Channel::of(&context).unwrap()).unwrap();
    let id = channel.channel().create_id(PortSpace::Tcp).unwrap();
    id.resolve_address(None, address, PATIENCE).unwrap();
    let event = timeout(PATIENCE, channel.event()).await.unwrap().unwrap();
    assert_eq!(event.id, id.key());
    assert!(matches!(event.kind, EventKind::AddressResolved));
}

/// No completion reports the end, so a task that only waits for completions would wait for ever.
#[tokio::test]
async fn the_end_of_a_connection_wakes_a_task() {
    let (context, address) = device_and_address();
    let listener = Listener::builder().context(&context).bind(address).unwrap();
    let to = listener.local_address().unwrap();
    let mut listener = AsyncListener::new(listener).unwrap();
    let connector = Connector::new().context(&context);
    let client = tokio::spawn(async move { connect(&connector, to).await.unwrap() });
    let mut server = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let client = client.await.unwrap();
    // A wait that is dropped takes no event and leaves the file free for the next wait.
    let soon = Duration::from_millis(10);
    assert!(timeout(soon, wait_disconnected(&server.link)).await.is_err());
    let waiting = timeout(PATIENCE, wait_disconnected(&server.link));
    let (ended, ()) = tokio::join!(waiting, async { drop(client) });
    ended.expect("the peer has gone").unwrap();
    timeout(PATIENCE, wait_disconnected(&server.link)).await.expect("again at once").unwrap();
    assert!(server.has_ended().unwrap());
}
