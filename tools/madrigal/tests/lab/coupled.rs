//! Two codes of one simulation on two sites behind NAT: the program of `examples/c`, whose ports reach each other through the daemons.
//!
//! Features (docs/features.md): B18, I1, L7.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Command;

use madrigal_tests::host;
use madrigal_tests::trials::need;

use super::bed::{Bed, Who, example, need_lab};

pub(crate) fn two_codes_of_two_sites_come_to_one_temperature() {
    need_lab(Who::Me);
    let (bed, _) = Bed::up_with(Who::Me, &example("two-sites.toml"), &["--with-daemons"]);
    let program = built(&bed);
    let mut ocean = bed.start("a1", &["timeout", "100", &program, "ocean"]);
    let mut printed = BufReader::new(ocean.stdout.take().unwrap());
    let (mut address, mut rest) = (String::new(), String::new());
    printed.read_line(&mut address).unwrap();
    let (status, out, err) = bed.exec("b1", &["timeout", "100", &program, "air", address.trim_end()]);
    assert_eq!((status, &*out), (0, "the air has 284.000 K\n"), "{err}");
    printed.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "the ocean has 284.000 K\n");
    assert!(ocean.wait().unwrap().success());
    bed.down();
}

/// The program, in the folder of the lab.
fn built(bed: &Bed) -> String {
    let program = Path::new(&bed.home.folder()).join("coupled");
    let (root, libraries) = (host::root(), host::release_for_c());
    let mut cc = Command::new(need("cc"));
    cc.arg("-O1").arg("-I").arg(root.join("personalities/capi/include")).arg("-o").arg(&program);
    cc.arg(root.join("examples/c/coupled.c")).arg(libraries.join("libmadrigal.so.0"));
    assert!(cc.arg(format!("-Wl,-rpath,{}", libraries.display())).status().unwrap().success());
    program.to_str().unwrap().to_owned()
}
