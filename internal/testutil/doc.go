// Package testutil holds what the tests of several packages share: the leak
// ledger, and running the test binary again as another program.
//
// # The ledger
//
// A sandbox is made of processes, descriptors, directories, mounts and cgroups,
// and whoever makes one must be able to show that all of it is gone afterwards.
// So a test begins with
//
//	testutil.Ledger(t, testutil.Scope{})
//
// and fails at its end, after all its other cleanups, with a list of exactly
// what it left behind. A package whose tests all have to be clean can use
// LedgerMain in its TestMain instead.
package testutil
