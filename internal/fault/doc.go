// Package fault names the points between two steps of the chain at which a process may die, and
// lets a test kill the process there.
//
// In an ordinary build [Hit] is an empty function that the compiler inlines away, and the
// environment is never read. Built with -tags faults, Hit counts how often each point is reached,
// and acts on [Variable]:
//
//	BOXPAIR_FAULT="before-mark=kill@3;before-claim-commit=error@2+"
//
// kills the process at the third time of before-mark, and fails before-claim-commit from its second
// time on. The grammar is
//
//	point=action[@n[+]] { ; point=action[@n[+]] }
//
// with n from 1, which is also the default; "+" means the n-th and every later time. The actions
// are
//
//	kill     SIGKILL to the process itself
//	stop     SIGSTOP to the process itself, until another process continues it
//	error    Hit returns an error that wraps [ErrInjected]
//	panic    Hit panics
//	goexit   Hit calls runtime.Goexit
//	wait     Hit waits for SIGUSR1, or for the end of its context, whose cause it returns
//
// Each action is announced on standard error before it is carried out, in one line that begins with
// "fault: ", so that a test can tell a run without any fault from a run that survived a fault.
//
// The points are the rows of the crash table in docs/guarantees.md. The idea of points without cost
// in production is that of etcd's gofail and River's testsignal.
package fault
