package kvm

// What tests judge another process than the one with the guest by.
var (
	Run    = run
	Report = report
)
