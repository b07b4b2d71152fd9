// Package fault names the points between two steps of the chain at which a
// process may die, and lets a test make it die there.
//
// In an ordinary build [Hit] is an empty function that the compiler inlines away, and
// nothing reads the environment. Built with -tags faults, Hit counts how often each
// point is reached and acts as [Variable] says:
//
//	BOXPAIR_FAULT="before-mark=kill@3;before-claim-commit=error@2+"
//
// kills the process when before-mark is reached for the third time, and has before-claim-commit
// fail from its second time on. The grammar is
//
//	point=action[@n[+]] { ; point=action[@n[+]] }
//
// with n from 1, which is also the default; "+" means that time and every one after
// it. The actions are
//
//	kill     SIGKILL to the process itself
//	stop     SIGSTOP to the process itself; it goes on when somebody continues it
//	error    Hit returns an error that wraps [ErrInjected]
//	panic    Hit panics
//	goexit   Hit calls runtime.Goexit
//	wait     Hit waits for SIGUSR1, or for the end of its context, whose cause it returns
//
// Each action is announced on standard error before it is carried out, in one line
// that begins with "fault: ", so that a test can tell a run in which nothing was
// injected from one that survived.
//
// The points are those of the crash table in docs/guarantees.md. The idea of points
// that cost nothing in production is that of etcd's gofail and River's testsignal.
package fault
