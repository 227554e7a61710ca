#if defined(__x86_64__)
	.text
// objc_msgSend looks the method up and jumps to it with the arguments as they came.
	.globl objc_msgSend
	.type objc_msgSend, @function
	.p2align 4
objc_msgSend:
	pushq %rbp
	movq %rsp, %rbp
	subq $192, %rsp
	movq %rdi, -8(%rbp)
	movq %rsi, -16(%rbp)
	movq %rdx, -24(%rbp)
	movq %rcx, -32(%rbp)
	movq %r8, -40(%rbp)
	movq %r9, -48(%rbp)
	movq %rax, -56(%rbp)
	movups %xmm0, -80(%rbp)
	movups %xmm1, -96(%rbp)
	movups %xmm2, -112(%rbp)
	movups %xmm3, -128(%rbp)
	movups %xmm4, -144(%rbp)
	movups %xmm5, -160(%rbp)
	movups %xmm6, -176(%rbp)
	movups %xmm7, -192(%rbp)
	call hostmetal_lookup
	movq %rax, %r11
	movups -80(%rbp), %xmm0
	movups -96(%rbp), %xmm1
	movups -112(%rbp), %xmm2
	movups -128(%rbp), %xmm3
	movups -144(%rbp), %xmm4
	movups -160(%rbp), %xmm5
	movups -176(%rbp), %xmm6
	movups -192(%rbp), %xmm7
	movq -8(%rbp), %rdi
	movq -16(%rbp), %rsi
	movq -24(%rbp), %rdx
	movq -32(%rbp), %rcx
	movq -40(%rbp), %r8
	movq -48(%rbp), %r9
	movq -56(%rbp), %rax
	leave
	jmpq *%r11
	.size objc_msgSend, .-objc_msgSend

// Structures above 16 bytes come back through a pointer in rdi; self is in rsi.
	.globl objc_msgSend_stret
	.type objc_msgSend_stret, @function
	.p2align 4
objc_msgSend_stret:
	pushq %rbp
	movq %rsp, %rbp
	subq $48, %rsp
	movq %rdi, -8(%rbp)
	movq %rsi, -16(%rbp)
	movq %rdx, -24(%rbp)
	movq %rcx, -32(%rbp)
	movq %r8, -40(%rbp)
	movq %r9, -48(%rbp)
	movq %rsi, %rdi
	movq %rdx, %rsi
	call hostmetal_lookup
	movq %rax, %r11
	movq -8(%rbp), %rdi
	movq -16(%rbp), %rsi
	movq -24(%rbp), %rdx
	movq -32(%rbp), %rcx
	movq -40(%rbp), %r8
	movq -48(%rbp), %r9
	leave
	jmpq *%r11
	.size objc_msgSend_stret, .-objc_msgSend_stret

// What a message to nil returns: zero of every kind.
	.globl hostmetal_nil
	.hidden hostmetal_nil
	.type hostmetal_nil, @function
hostmetal_nil:
	xorl %eax, %eax
	xorl %edx, %edx
	xorps %xmm0, %xmm0
	ret
	.size hostmetal_nil, .-hostmetal_nil

#elif defined(__aarch64__)
	.text
// void hostmetal_switch(void **save, void *load): stores the stack pointer at *save with the
// callee-saved registers at it, and continues where `load` was stored.
	.globl hostmetal_switch
	.hidden hostmetal_switch
	.type hostmetal_switch, %function
	.p2align 4
hostmetal_switch:
	sub sp, sp, #160
	stp x19, x20, [sp, #0]
	stp x21, x22, [sp, #16]
	stp x23, x24, [sp, #32]
	stp x25, x26, [sp, #48]
	stp x27, x28, [sp, #64]
	stp x29, x30, [sp, #80]
	stp d8, d9, [sp, #96]
	stp d10, d11, [sp, #112]
	stp d12, d13, [sp, #128]
	stp d14, d15, [sp, #144]
	mov x9, sp
	str x9, [x0]
	mov sp, x1
	ldp x19, x20, [sp, #0]
	ldp x21, x22, [sp, #16]
	ldp x23, x24, [sp, #32]
	ldp x25, x26, [sp, #48]
	ldp x27, x28, [sp, #64]
	ldp x29, x30, [sp, #80]
	ldp d8, d9, [sp, #96]
	ldp d10, d11, [sp, #112]
	ldp d12, d13, [sp, #128]
	ldp d14, d15, [sp, #144]
	add sp, sp, #160
	br x30
	.size hostmetal_switch, .-hostmetal_switch

	.globl objc_msgSend
	.type objc_msgSend, %function
	.p2align 4
objc_msgSend:
	stp x29, x30, [sp, #-16]!
	mov x29, sp
	sub sp, sp, #208
	stp x0, x1, [sp, #0]
	stp x2, x3, [sp, #16]
	stp x4, x5, [sp, #32]
	stp x6, x7, [sp, #48]
	str x8, [sp, #64]
	stp q0, q1, [sp, #80]
	stp q2, q3, [sp, #112]
	stp q4, q5, [sp, #144]
	stp q6, q7, [sp, #176]
	bl hostmetal_lookup
	mov x16, x0
	ldp x0, x1, [sp, #0]
	ldp x2, x3, [sp, #16]
	ldp x4, x5, [sp, #32]
	ldp x6, x7, [sp, #48]
	ldr x8, [sp, #64]
	ldp q0, q1, [sp, #80]
	ldp q2, q3, [sp, #112]
	ldp q4, q5, [sp, #144]
	ldp q6, q7, [sp, #176]
	mov sp, x29
	ldp x29, x30, [sp], #16
	br x16
	.size objc_msgSend, .-objc_msgSend

	.globl hostmetal_nil
	.hidden hostmetal_nil
	.type hostmetal_nil, %function
hostmetal_nil:
	mov x0, #0
	mov x1, #0
	movi v0.2d, #0
	movi v1.2d, #0
	movi v2.2d, #0
	movi v3.2d, #0
	ret
	.size hostmetal_nil, .-hostmetal_nil
#endif
	.section .note.GNU-stack, "", %progbits
