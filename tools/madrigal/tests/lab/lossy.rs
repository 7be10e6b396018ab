//! Links of programs over a line that loses packets: `vrp/udp`, as messages and as a stream. Features B6, B11.

use madrigal_tests::host;
use serde_json::Value;

use super::bed::{Bed, Who, need_lab, run};

/// A line that loses one packet of 20, each way.
const LAB: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '20M'\ndelay = '20ms'\nloss = '5%'\n";

/// What both ends begin with: `argv[1]` is the package, `argv[2]` the library, `argv[3]` the certificate.
const BOTH: &str = "import json, os, sys, time\n\
    os.environ['MADRIGAL_LIBRARY'] = sys.argv[2]; os.environ['MADRIGAL_CONFIG_DIR'] = sys.argv[3]; sys.path.insert(0, sys.argv[1])\n\
    import madrigal\n\
    def content(number, kind): return bytes((number * 31 + at * 7 + kind) % 255 + 1 for at in range(5000))\n\
    classes = [madrigal.MessageClass(tolerance=100, window=1 << 16, granularity=100, must=16), madrigal.MessageClass(tolerance=0)]\n\
    runtime = madrigal.Runtime()\n";

/// The end that listens: checks what came, and tells the losses; then echoes a stream, whose other end closes its runtime, which waits for nothing.
const FAR: &str = "acceptor = madrigal.LossyAcceptor(runtime, 'vrp/udp://0.0.0.0:5005', classes)\n\
    streams = runtime.listen('vrp/udp://0.0.0.0:5006')\n\
    print('ready', flush=True)\n\
    link, told = acceptor.accept(60), []\n\
    while (message := link.receive(60)) is not None:\n    \
        wanted = bytearray(content(message.number, message.kind))\n    \
        for begin, end in message.lost: wanted[begin:end] = bytes(end - begin)\n    \
        assert bytes(wanted) == message.data, message.number\n    \
        told.append((message.kind, message.number, message.lost))\n\
    stream = streams.accept(60)\n\
    left = 1 << 20\n\
    while left > 0:\n    \
        some = stream.read(timeout=60); stream.write(some, timeout=60); left -= len(some)\n\
    try: stream.read(timeout=60)\n\
    except madrigal.Reset: pass\n\
    json.dump(sorted(told), open(sys.argv[4], 'w'))\n\
    stream.close(); runtime.close()\n";

/// The end that sends: 600 messages, one of three of which nothing may be lost; and a stream.
const NEAR: &str = "link = madrigal.LossyLink.connect(runtime, 'vrp/udp://10.2.0.2:5005', classes, timeout=30)\n\
    for at in range(600): link.send(content(at // 2, at % 2), kind=at % 2, timeout=60)\n\
    told = sorted(tuple(link.settled(60)) for _ in range(600))\n\
    link.close()\n\
    stream, sent = runtime.connect('vrp/udp://10.2.0.2:5006', timeout=30), os.urandom(1 << 20)\n\
    back = bytearray(len(sent))\n\
    assert stream.write(sent, timeout=60) == len(sent)\n\
    stream.read_exactly(back, 60)\n\
    assert bytes(back) == sent\n\
    stream.close(); runtime.close()\n\
    print(json.dumps(told))\n";

fn settled(text: &str) -> Vec<Value> {
    let told: Value = serde_json::from_str(text).expect("what became of messages");
    told.as_array().cloned().expect("a list")
}

pub(crate) fn losses_are_those_that_were_suffered_and_a_stream_has_none() {
    need_lab(Who::Me);
    let library = host::release_for_c().join("libmadrigal.so.0");
    let package = host::root().join("personalities/python/src");
    let bed = Bed::up_text(LAB);
    let folder = bed.home.folder();
    let certificate = format!("{folder}/certificate");
    for words in [&["ca", "init", "test"][..], &["login", "--user", "ann"]] {
        let mut command = std::process::Command::new(bed.home.exe());
        let (status, _, why) = run(command.args(words).env("MADRIGAL_CONFIG_DIR", &certificate));
        assert_eq!(status, 0, "{why}");
    }
    let [package, library] = [&package, &library].map(|path| path.to_str().expect("UTF-8").to_owned());
    let told = format!("{folder}/told");
    let mut far =
        bed.start("b1", &["/usr/bin/python3", "-c", &format!("{BOTH}{FAR}"), &package, &library, &certificate, &told]);
    let mut ready = String::new();
    let stdout = far.stdout.take().expect("it is piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut ready).expect("reads");
    assert_eq!(ready, "ready\n");
    let near = settled(&bed.python("a1", &format!("{BOTH}{NEAR}"), &[&package, &library, &certificate]));
    assert!(far.wait().expect("it ends").success(), "what came is not what was sent");
    let far = settled(&std::fs::read_to_string(&told).expect("what it was told"));
    assert_eq!(near, far, "both ends are told of the same losses");
    assert_eq!(near.len(), 600);
    let lost_of = |class: u64| -> u64 {
        let its = near.iter().filter(|one| one[0] == class).flat_map(|one| one[2].as_array().expect("none failed"));
        its.map(|span| span[1].as_u64().expect("an end") - span[0].as_u64().expect("a beginning")).sum()
    };
    let (some, none) = (lost_of(0), lost_of(1));
    // One of 20 datagrams is lost: of 1.5 MB that is 75 KB, and a tenth may be.
    assert!((15_000..=150_000).contains(&some) && none == 0, "{some} and {none} bytes lost");
    bed.down();
}
