"""Classes, short names and alignment of kernels."""

import random
import time

import pytest

from effbench.analysis.kernel_changes import (
    NOTHING,
    aligned,
    changes_between,
    with_operators,
)
from effbench.analysis.kernel_classes import NOUNS, KernelClass, class_of, short_name
from effbench.core.trace import Kernel, Trace

VECTORIZED = "void at::native::vectorized_elementwise_kernel<8, at::native::"
ELEMENTWISE = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
)
CUDNN = "bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize"
PRODUCTS = KernelClass.PRODUCTS
CONVOLUTIONS = KernelClass.CONVOLUTIONS
ATTENTION = KernelClass.ATTENTION
NORMALISATION = KernelClass.NORMALISATION
POINTWISE = KernelClass.POINTWISE
REDUCTIONS = KernelClass.REDUCTIONS
COPIES = KernelClass.COPIES
COLLECTIVES = KernelClass.COLLECTIVES
OTHER = KernelClass.OTHER

ON_GPU = [
    ("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_TNT", PRODUCTS, "nvjet 128x64 tile"),
    ("nvjet_sm90_tst_64x32_64x16_2x4_h_bz_splitK_TNT", PRODUCTS, "nvjet splitK 64x32 tile"),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_nn_align2>"
        "(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_nn_align2::Params)",
        PRODUCTS,
        "cutlass gemm 128x64 tile",
    ),
    (
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
        PRODUCTS,
        "ampere gemm 128x64 tile",
    ),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x3"
        "2x8_stage3_warpsize1x2x1_ffma__5x_cublas",
        PRODUCTS,
        "xmma gemm 32x32 tile",
    ),
    (
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, 128, 16>(float)",
        PRODUCTS,
        "gemv2T_kernel_val",
    ),
    (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)",
        PRODUCTS,
        "splitKreduce_kernel",
    ),
    ("triton_tem_fused_addmm_gelu_t_view_3", PRODUCTS, "triton template addmm gelu"),
    ("triton_red_fused_mm_t_transpose_view_7", PRODUCTS, "triton fused mm"),
    ("triton_tem_fused_convolution_0", CONVOLUTIONS, "triton template convolution"),
    ("triton_tem_fused_flex_attention_0", ATTENTION, "triton template flex attention"),
    ("triton_poi_fused_gelu_view_12", POINTWISE, "triton fused gelu"),
    ("triton_poi_fused__unsafe_view_mul_silu_8", POINTWISE, "triton fused mul silu"),
    (
        "triton_poi_fused__scaled_dot_product_cudnn_attenti"
        "on__unsafe_view_clone_mul_transpose_view_2",
        POINTWISE,
        "triton fused scaled dot product cudnn attention…",
    ),
    ("triton_poi_fused__to_copy_clone_transpose_view_4", COPIES, "triton fused to copy clone"),
    ("triton_poi_fused_index_copy_permute_unbind_view_1", COPIES, "triton fused index copy"),
    (
        "triton_per_fused_add_native_layer_norm_view_2",
        NORMALISATION,
        "triton fused add native layer norm",
    ),
    (
        "triton_red_fused__to_copy__unsafe_view_add_mean_mul_pow_rsqrt_5",
        NORMALISATION,
        "triton fused to copy add mean mul pow rsqrt",
    ),
    (
        "triton_per_fused__safe_softmax_add_exp_sub_1",
        REDUCTIONS,
        "triton fused safe softmax add exp sub",
    ),
    (f"{VECTORIZED}GeluCUDAKernelImpl(at::TensorIteratorBase&)", POINTWISE, "elementwise gelu"),
    (f"{VECTORIZED}CUDAFunctor_add<c10::BFloat16>, std::array<>>", POINTWISE, "elementwise add"),
    (
        f"{ELEMENTWISE}BinaryFunctor<float, float, float, at::native::binary_internal::"
        "MulFunctor<float> > >(at::TensorIteratorBase&)",
        POINTWISE,
        "elementwise mul",
    ),
    (
        f"{ELEMENTWISE}(anonymous namespace)::where_kernel_impl(at::TensorIterator&)",
        POINTWISE,
        "elementwise where",
    ),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::X>(int)",
        POINTWISE,
        "multi_tensor_apply_kernel",
    ),
    (
        f"{VECTORIZED}bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)",
        COPIES,
        "elementwise bfloat16 copy",
    ),
    (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(X&)>",
        COPIES,
        "elementwise direct copy",
    ),
    (f"{VECTORIZED}FillFunctor<float>, std::array<char*, 1ul> >", COPIES, "elementwise fill"),
    (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>>()",
        COPIES,
        "CatArrayBatchedCopy",
    ),
    (
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
        COPIES,
        "vectorized_gather_kernel",
    ),
    ("Memcpy DtoD (Device -> Device)", COPIES, "Memcpy DtoD"),
    ("Memset (Device)", COPIES, "Memset"),
    (
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float, false>(int)",
        COPIES,
        "nchwToNhwcKernel",
    ),
    (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        NORMALISATION,
        "vectorized_layer_norm_kernel",
    ),
    ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>(float)", NORMALISATION, None),
    (
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>()",
        NORMALISATION,
        None,
    ),
    (f"{VECTORIZED}batch_norm_calc_invstd(at::Tensor const&)", NORMALISATION, None),
    (
        "void at::native::batch_norm_transform_input_kernel<c10::BFloat16, true>()",
        NORMALISATION,
        None,
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
        "MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(X)",
        REDUCTIONS,
        "reduce mean",
    ),
    ("void (anonymous namespace)::softmax_warp_forward<float, float>()", REDUCTIONS, None),
    ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>()", REDUCTIONS, None),
    (
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(X)",
        ATTENTION,
        "flash_fwd_kernel",
    ),
    ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)", ATTENTION, None),
    (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_"
        "wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0",
        ATTENTION,
        "cudnn sdpa fprop 64x128 tile",
    ),
    (
        f"sm90_xmma_fprop_implicit_gemm_{CUDNN}128x128x64_warpgroupsize1x1x1_g1__5x_cudnn",
        CONVOLUTIONS,
        "xmma fprop gemm 128x128 tile",
    ),
    (
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_bf16_64x64_64x5>()",
        CONVOLUTIONS,
        "cutlass fprop 64x64 tile",
    ),
    ("void implicit_convolve_sgemm<float, float, 1024, 5>(int)", CONVOLUTIONS, None),
    ("conv2d_c1_k1_nhwc_specialized_0", CONVOLUTIONS, None),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float>()", CONVOLUTIONS, None),
    ("sm80_xmma_wgrad_implicit_gemm_f32f32_f32_tilesize64x64x8__5x_cudnn", CONVOLUTIONS, None),
    (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        COLLECTIVES,
        None,
    ),
    ("multimem_all_reduce_kernel", COLLECTIVES, None),
    ("my_kernel", OTHER, "my_kernel"),
]
ON_CPU = [
    ("aten::mm", PRODUCTS),
    ("aten::addmm", PRODUCTS),
    ("aten::baddbmm", PRODUCTS),
    ("aten::linear", PRODUCTS),
    ("mkldnn::_linear_pointwise", PRODUCTS),
    ("mkl::_mkl_linear", PRODUCTS),
    ("aten::convolution", CONVOLUTIONS),
    ("aten::mkldnn_convolution", CONVOLUTIONS),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", ATTENTION),
    ("aten::native_layer_norm", NORMALISATION),
    ("aten::batch_norm", NORMALISATION),
    ("aten::add", POINTWISE),
    ("aten::mul_", POINTWISE),
    ("aten::relu_", POINTWISE),
    ("aten::gelu", POINTWISE),
    ("aten::gelu_backward", POINTWISE),
    ("aten::clamp_min", POINTWISE),
    ("aten::sum", REDUCTIONS),
    ("aten::amax", REDUCTIONS),
    ("aten::_softmax", REDUCTIONS),
    ("aten::max_pool2d_with_indices", REDUCTIONS),
    ("aten::copy_", COPIES),
    ("aten::_to_copy", COPIES),
    ("aten::contiguous", COPIES),
    ("aten::cat", COPIES),
    ("aten::embedding", COPIES),
    ("fused loops", KernelClass.FUSED_LOOPS),
    ("aten::empty", OTHER),
    ("aten::view", OTHER),
]


def a_kernel(name, operator=None, ms=0.01, gap_ms=0.0, launch=""):
    return Kernel(name, launch, operator, ms, ms, gap_ms)


def a_trace(*kernels):
    busy_ms = sum(kernel.added_ms for kernel in kernels)
    return Trace("cuda", 10, busy_ms, 0.0, 0.0, 3 * len(kernels), kernels, {})


@pytest.mark.parametrize(("name", "expected", "short"), ON_GPU)
def test_kernels_by_name(name, expected, short):
    kernel = a_kernel(name)
    assert class_of(kernel) is expected
    if short is not None:
        assert short_name(name) == short


@pytest.mark.parametrize(("operator", "expected"), ON_CPU)
def test_operators_of_the_cpu(operator, expected):
    assert class_of(a_kernel(operator, operator)) is expected


@pytest.mark.parametrize(
    ("name", "operator", "expected"),
    [
        ("kernel_cutting_corners", "aten::addmm", PRODUCTS),
        ("kernel", "aten::cudnn_convolution", CONVOLUTIONS),
        ("kernel", "aten::_softmax", REDUCTIONS),
        ("nvjet_sm90_tst_64x8_64x16", "aten::scaled_dot_product_attention", ATTENTION),
        ("aten::bmm", "aten::scaled_dot_product_attention", ATTENTION),
        (f"{VECTORIZED}CUDAFunctor_add<float>>", "aten::native_group_norm", NORMALISATION),
        ("aten::expand", "aten::addmm", PRODUCTS),
        ("aten::as_strided", "fused loops", OTHER),
        ("ncclDevKernel_AllGather", "aten::batch_norm", COLLECTIVES),
    ],
)
def test_the_operator_decides_where_the_name_says_nothing(name, operator, expected):
    assert class_of(a_kernel(name, operator)) is expected


def test_every_class_has_a_noun():
    assert set(NOUNS) == set(KernelClass)


# --- alignment


def longest(first, second):
    """The length of a longest common subsequence, by the textbook."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, old in enumerate(first):
        for j, new in enumerate(second):
            best = max(lengths[i][j + 1], lengths[i + 1][j])
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if old == new else best
    return lengths[-1][-1]


def test_alignments_are_longest_common_subsequences():
    numbers = random.Random(1)
    for _ in range(500):
        first = [a_kernel(numbers.choice("abcd")) for _ in range(numbers.randrange(12))]
        second = [a_kernel(numbers.choice("abcde")) for _ in range(numbers.randrange(12))]
        pairs = aligned(first, second, lambda kernel: kernel.name)
        matches = [pair for pair in pairs if NOTHING not in pair]
        assert len(matches) == longest(first, second)
        assert all(pair.first == pair.second for pair in matches)
        assert [pair.first for pair in pairs if pair.first is not NOTHING] == first
        assert [pair.second for pair in pairs if pair.second is not NOTHING] == second


@pytest.mark.parametrize("shared", [0, 15, 30])
def test_ten_thousand_kernels_take_less_than_a_second(shared):
    numbers = random.Random(2)
    old = [a_kernel(f"gemm_{numbers.randrange(30)}x") for _ in range(10_000)]
    new = [a_kernel(f"gemm_{numbers.randrange(30) + 30 - shared}x") for _ in range(10_000)]
    first, second = a_trace(*old), a_trace(*new)
    start = time.process_time()
    changes_between(first, second)
    assert time.process_time() - start < 2  # 0.2 s on an idle machine


# --- changes

ADD = a_kernel(f"{VECTORIZED}CUDAFunctor_add<c10::BFloat16>>", "aten::add", 0.01)
GELU = a_kernel(f"{VECTORIZED}GeluCUDAKernelImpl(at::X&)>", "aten::gelu", 0.02)
SMALL = a_kernel("nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT", "aten::addmm", 0.1)
LARGE = a_kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_TNT", "aten::addmm", 0.2)
TEMPLATE = a_kernel("triton_tem_fused_addmm_gelu_3", "triton_tem_fused_addmm_gelu_3", 0.11)
FUSED = a_kernel("triton_poi_fused_add_gelu_1", "triton_poi_fused_add_gelu_1", 0.02)
COPY = a_kernel("Memcpy DtoD (Device -> Device)", "aten::copy_", 0.05)


def rows(first, second):
    changes = changes_between(a_trace(*first), a_trace(*second))
    return [
        (str(row.kind), row.count, row.first_name, row.second_name, row.into) for row in changes
    ]


def test_the_same_kernels_do_not_change():
    assert rows([SMALL, ADD, GELU], [SMALL, ADD, GELU]) == []


def test_a_new_copy():
    assert rows([SMALL, ADD], [SMALL, COPY, ADD]) == [("new", 1, "", "Memcpy DtoD", None)]
    assert rows([SMALL, COPY, ADD], [SMALL, ADD]) == [("gone", 1, "Memcpy DtoD", "", None)]


def test_another_tile_counts_once_for_all_layers():
    layers = 12
    assert rows([SMALL, GELU] * layers, [LARGE, GELU] * layers) == [
        ("replaced", layers, "nvjet 64x32 tile", "nvjet 256x128 tile", None)
    ]


def test_kernels_that_are_fused():
    assert rows([SMALL, ADD, GELU], [SMALL, FUSED]) == [
        ("fused", 1, "elementwise gelu", "", None),
        ("new", 1, "", "triton fused add gelu", None),
        ("fused", 1, "elementwise add", "", None),
    ]


def test_each_layer_has_one_product_less():
    assert rows([SMALL, LARGE, ADD] * 3, [LARGE, ADD] * 3) == [
        ("gone", 3, "nvjet 64x32 tile", "", None)
    ]


def test_kernels_that_are_no_longer_fused_into_a_product():
    assert rows([TEMPLATE, LARGE], [SMALL, GELU, LARGE]) == [
        ("no longer fused", 1, "", "elementwise gelu", "matrix products"),
        ("replaced", 1, "triton template addmm gelu", "nvjet 64x32 tile", None),
    ]


def test_fused_loops_do_the_work_of_a_whole_call():
    product = a_kernel("aten::addmm", "aten::addmm", 0.1)
    gelu = a_kernel("aten::gelu", "aten::gelu", 0.1)
    loops = a_kernel("fused loops", "fused loops", 0.05)
    inside = a_kernel("aten::addmm", "fused loops", 0.1)
    assert rows([product, gelu] * 2, [loops, inside, inside]) == [
        ("fused", 2, "gelu", "", "fused loops"),
        ("new", 1, "", "fused loops", None),
    ]
    assert rows([loops, inside, inside], [product, gelu] * 2) == [
        ("no longer fused", 2, "", "gelu", "fused loops"),
        ("gone", 1, "fused loops", "", None),
    ]


def test_the_same_kernels_in_another_time():
    slower = a_kernel(SMALL.name, SMALL.operator, 0.12)
    name = "nvjet 64x32 tile"
    assert rows([SMALL, ADD], [slower, ADD]) == [("slower", 1, name, name, None)]
    assert rows([slower, ADD], [SMALL, ADD]) == [("faster", 1, name, name, None)]
    hardly = a_kernel(SMALL.name, SMALL.operator, 0.103)
    assert rows([SMALL], [hardly]) == []


def test_numbers_of_triton_kernels_and_addresses_do_not_count():
    again = a_kernel("triton_poi_fused_add_gelu_7", None, 0.02)
    assert rows([SMALL, FUSED], [SMALL, again]) == []


def test_graphs_take_the_operators_of_the_other_side():
    unknown = a_kernel(ADD.name)
    graph = a_trace(unknown, unknown, a_kernel("mine"))
    eager = a_trace(ADD, a_kernel(ADD.name, "aten::sub"), GELU)
    known = with_operators(graph, eager)
    assert [kernel.operator for kernel in known.kernels] == ["aten::add", "aten::sub", None]
    assert with_operators(eager, graph) == eager


def test_times_of_changes_add_up():
    numbers = random.Random(3)
    kernels = [ADD, GELU, SMALL, LARGE, TEMPLATE, FUSED, COPY]
    for _ in range(100):
        first = a_trace(*numbers.choices(kernels, k=numbers.randrange(20)))
        second = a_trace(*numbers.choices(kernels, k=numbers.randrange(20)))
        changes = changes_between(first, second)
        assert sum(row.ms for row in changes) == pytest.approx(second.busy_ms - first.busy_ms)
