//! The links between the hosts, and what happens to them.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use super::host::{Cut, Host, address_6};
use super::setup::find_program;
use super::{Names, Plan};
use crate::helper::helper;

/// The host's end of its link. The bridge's is [`port`].
const INTERFACE: &str = "eth0";
/// The same of a bench with a second network.
const SECOND: &str = "eth1";

fn port(host: &Host) -> String {
    format!("v{}", host.index)
}

/// Lays the links from every host to the bridge.
pub(super) fn join(switch: i32, hosts: &[Host], plan: &Plan) {
    let mut lines = String::from("link add br0 type bridge\nlink set br0 up\n");
    for host in hosts {
        let (port, pid) = (port(host), host.holder);
        lines += &format!(
            "link add {port} type veth peer name {INTERFACE} netns {pid}\nlink set {port} master br0\nlink set {port} up\n"
        );
        if plan.has_second_network {
            lines += &format!(
                "link add w{port} type veth peer name {SECOND} netns {pid}\nlink set w{port} master br0\nlink set w{port} up\n"
            );
        }
    }
    finish(start(switch, "ip", &["-batch", "-"], &lines), &lines);
    let of_host = |host: &Host| {
        let address = match plan.names {
            Names::Ipv6 => format!("{}/64 dev {INTERFACE} nodad", address_6(host.index)),
            Names::Ipv4 | Names::OwnIsLoopback => format!("{}/24 dev {INTERFACE}", host.address()),
        };
        let second = match (plan.has_second_network, host.address().octets()[3]) {
            (false, _) => String::new(),
            (true, last) => format!("addr add 10.98.0.{last}/24 dev {SECOND}\nlink set {SECOND} up\n"),
        };
        format!("link set lo up\naddr add {address}\nlink set {INTERFACE} up\n{second}")
    };
    let running: Vec<(Child, String)> = hosts
        .iter()
        .map(|host| {
            let lines = of_host(host);
            (start(host.holder, "ip", &["-batch", "-"], &lines), lines)
        })
        .collect();
    for (child, lines) in running {
        finish(child, &lines);
    }
}

pub(super) fn cut(host: &Host, how: Cut) {
    let (name, port) = (table(host), port(host));
    match how {
        Cut::Link => finish(start(host.switch, "ip", &["link", "set", &port, "down"], ""), "link down"),
        Cut::Silent => nft(
            host.switch,
            &format!(
                "table bridge {name} {{\nchain forward {{\ntype filter hook forward priority 0\n\
                 iifname \"{port}\" drop\noifname \"{port}\" drop\n}}\n}}\n"
            ),
        ),
        // The resets themselves must pass.
        Cut::Reset => nft(
            host.holder,
            &format!(
                "table ip {name} {{\n\
                 chain incoming {{\ntype filter hook input priority 0\niifname \"{INTERFACE}\" tcp flags & rst == 0 reject with tcp reset\n}}\n\
                 chain outgoing {{\ntype filter hook output priority 0\noifname \"{INTERFACE}\" tcp flags & rst == 0 reject with tcp reset\n}}\n}}\n"
            ),
        ),
    }
}

pub(super) fn heal(host: &Host) {
    let name = table(host);
    finish(start(host.switch, "ip", &["link", "set", &port(host), "up"], ""), "link up");
    // A table that is declared first can be deleted whether or not it was there.
    nft(host.switch, &format!("table bridge {name}\ndelete table bridge {name}\n"));
    nft(host.holder, &format!("table ip {name}\ndelete table ip {name}\n"));
}

/// The name of the table of rules that cut a host off.
fn table(host: &Host) -> String {
    format!("cut{}", host.index)
}

pub(super) fn rate(host: &Host, bits: u64) {
    // What may pass at once: a hundredth of a second, and not less than one segment of a link without hardware.
    let burst = (bits / 8 / 100).max(65_536);
    let (rate, burst) = (format!("{bits}bit"), burst.to_string());
    let port = port(host);
    for (pid, device) in [(host.switch, port.as_str()), (host.holder, INTERFACE)] {
        let words =
            ["qdisc", "replace", "dev", device, "root", "tbf", "rate", &rate, "burst", &burst, "latency", "100ms"];
        finish(start(pid, "tc", &words, ""), "tbf");
    }
}

/// Leads the host's new TCP connections, in and out, to a port of the host's own. The relay behind it is known by its user.
pub(super) fn redirect(host: &Host, port: u16) {
    let user = super::relay::USER;
    nft(
        host.holder,
        &format!(
            "table ip delay {{\n\
             chain incoming {{\ntype nat hook prerouting priority -100\niifname \"{INTERFACE}\" ip protocol tcp redirect to :{port}\n}}\n\
             chain outgoing {{\ntype nat hook output priority -100\n\
             oifname \"{INTERFACE}\" meta skuid != {user} ip protocol tcp redirect to :{port}\n}}\n}}\n"
        ),
    );
}

fn nft(pid: i32, rules: &str) {
    finish(start(pid, "nft", &["-f", "-"], rules), rules);
}

/// Starts a program in the namespaces of a holder, with these lines as its input.
fn start(pid: i32, program: &str, arguments: &[&str], input: &str) -> Child {
    let path = find_program(program).unwrap_or_else(|| panic!("{program} was there before"));
    let mut command = Command::new(helper("hosts"));
    command
        .args([OsStr::new("enter"), OsStr::new(&pid.to_string()), OsStr::new("-"), path.as_os_str()])
        .args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a helper can be started");
    let mut stdin = child.stdin.take().expect("it was asked for");
    // A program that does not read its input says why on stderr.
    let _ = stdin.write_all(input.as_bytes());
    child
}

fn finish(child: Child, what: &str) {
    let output = child.wait_with_output().expect("it is our child");
    assert!(output.status.success(), "{}: {what}", String::from_utf8_lossy(&output.stderr));
}
