//! `madrigal run`: its options are of two families of launchers, and are read by `madrigal-launch`.

use clap::Args;

const EXAMPLES: &str = "Each process runs as by `madrigal exec`. Those of MPICH's family (MPICH, Intel MPI) meet by PMI-1; programs that are not of MPI
are just started, with their number in PMI_RANK and OMPI_COMM_WORLD_RANK. For Open MPI, which meets by PMIx, type
madrigal exec -- mpirun ... in place of this.

Exit status: of the first process that ended badly, 128 and the signal if a signal ended it; what MPI_Abort was given; 124: it took too
long; 125: it was not started; 126, 127: the program cannot be executed, or is not there.

Examples:
  madrigal run -n 4 ./ring
  madrigal run -n 4 --host a:2,b:2 ./ring                    by ssh, which must not ask for a password
  madrigal run --host a,b --agent 'kubectl exec -i {host} --' ./ring
  madrigal run -n 1 ./master : -n 3 ./worker";

/// `madrigal run`.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    override_usage = "madrigal run [OPTIONS] PROGRAM [ARGUMENTS]... [: [OPTIONS] PROGRAM [ARGUMENTS]...]...",
    after_help = options()
)]
pub(crate) struct Run {
    /// Options, the program and its arguments
    #[arg(value_name = "OPTIONS, PROGRAM, ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true, num_args = 0.., hide = true)]
    pub(crate) words: Vec<String>,
}

fn options() -> String {
    format!("Options, in front of each program; one dash or two:\n{}\n{EXAMPLES}", madrigal_launch::help())
}
