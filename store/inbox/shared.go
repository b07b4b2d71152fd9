package inbox

import "context"

type sharedKey struct{}

// WithSharedTransaction returns a context for a function of [ClaimStore.ApplyGroup] that runs a
// handler for each message. A setting that one handler makes for the transaction must not be seen
// by the next handler: a store refuses the setting with [ErrNotShared].
func WithSharedTransaction(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, true)
}

// SharesTransaction tells whether ctx derives from [WithSharedTransaction].
func SharesTransaction(ctx context.Context) bool {
	shares, _ := ctx.Value(sharedKey{}).(bool)
	return shares
}
