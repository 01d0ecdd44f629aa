package agent

// Removable is for a test that must not try the real thing: on the root.
var Removable = removable
