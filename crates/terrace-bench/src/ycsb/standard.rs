//! YCSB's six standard workloads and one of ours, as property files.
//!
//! The counts of records and operations are omitted: YCSB's 1000 is a placeholder, and the command
//! line gives them.

/// The standard workloads by name: `a` to `f`, and `churn`, which is ours.
pub(crate) const STANDARD: [(&str, &str); 7] = [
    (
        "a",
        "# Update heavy: a session store.\n\
         workload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\n\
         readproportion=0.5\n\
         updateproportion=0.5\n\
         scanproportion=0\n\
         insertproportion=0\n\
         requestdistribution=zipfian\n",
    ),
    (
        "b",
        "# Read mostly: tags of photos.\n\
         workload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\n\
         readproportion=0.95\n\
         updateproportion=0.05\n\
         scanproportion=0\n\
         insertproportion=0\n\
         requestdistribution=zipfian\n",
    ),
    (
        "c",
        "# Read only: a cache of user profiles.\n\
         workload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\n\
         readproportion=1\n\
         updateproportion=0\n\
         scanproportion=0\n\
         insertproportion=0\n\
         requestdistribution=zipfian\n",
    ),
    (
        "d",
        "# Read latest: status updates.\n\
         workload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\n\
         readproportion=0.95\n\
         updateproportion=0\n\
         scanproportion=0\n\
         insertproportion=0.05\n\
         requestdistribution=latest\n",
    ),
    (
        "e",
        "# Short ranges: threaded conversations.\n\
         workload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\n\
         readproportion=0\n\
         updateproportion=0\n\
         scanproportion=0.95\n\
         insertproportion=0.05\n\
         requestdistribution=zipfian\n\
         maxscanlength=100\n\
         scanlengthdistribution=uniform\n",
    ),
    (
        "f",
        "# Read-modify-write: a user database.\n\
         workload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\n\
         readproportion=0.5\n\
         updateproportion=0\n\
         scanproportion=0\n\
         insertproportion=0\n\
         readmodifywriteproportion=0.5\n\
         requestdistribution=zipfian\n",
    ),
    (
        "churn",
        "# Garbage: skewed overwrites, each of another size.\n\
         readproportion=0.05\n\
         updateproportion=0.95\n\
         requestdistribution=zipfian\n\
         fieldcount=1\n\
         minfieldlength=100\n\
         fieldlength=1000\n\
         fieldlengthdistribution=uniform\n",
    ),
];

/// Returns the text of the workload `name`, or `None` if it does not exist.
pub(crate) fn text_of(name: &str) -> Option<&'static str> {
    let found = STANDARD.iter().find(|(standard, _)| *standard == name);
    found.map(|(_, text)| *text)
}
